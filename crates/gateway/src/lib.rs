//! sluice gateway
