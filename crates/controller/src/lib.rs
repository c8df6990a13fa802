//! sluice controller
