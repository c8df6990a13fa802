//! sluice agent
