//! How the server is: for those who watch it and for routers.

pub(crate) mod health;
pub(crate) mod info;
pub(crate) mod metrics;
