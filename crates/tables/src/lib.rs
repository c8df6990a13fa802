//! sluice tables
