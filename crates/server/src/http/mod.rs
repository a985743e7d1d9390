//! The plumbing of HTTP: connections and TLS, what every request passes, and the arrival of bodies.
//! Nothing here knows an endpoint.

pub(crate) mod auth;
pub(crate) mod extract;
pub(crate) mod listen;
mod members;
pub(crate) mod peers;
pub(crate) mod request_id;
mod tls;
pub(crate) mod work;
