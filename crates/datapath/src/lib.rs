//! sluice datapath
