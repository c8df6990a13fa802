//! sluice southbound
