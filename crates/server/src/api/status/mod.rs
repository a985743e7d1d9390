//! The state of the server, for monitoring and for routers.

pub(crate) mod health;
pub(crate) mod info;
pub(crate) mod metrics;
