//! sluice vswitch
