//! sluice lab
