//! Which rows were logged on a connection, so that each is logged once.

use super::{Api, ROWS, found};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The rows of a connection's requests, in an extension of each request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Logged(Arc<Mutex<BTreeSet<usize>>>);

impl Logged {
    /// Logs the rows of a request that were not logged before. A row is logged in its own words, so that
    /// nothing of the request gets into the log.
    pub(crate) fn log(&self, api: Api, body: &Map<String, Value>) {
        for idx in self.add(&found(api, body)) {
            let row = &ROWS[idx];
            tracing::info!(
                api = api.name(),
                "left out or ignored: {} ({})",
                row.title(),
                row.reason
            );
        }
    }

    /// The rows among these that were not there before.
    fn add(&self, rows: &[usize]) -> Vec<usize> {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter().copied().filter(|&row| logged.insert(row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_logged_once_per_connection() {
        let logged = Logged::default();
        assert_eq!(logged.add(&[1, 4]), [1, 4]);
        assert_eq!(logged.clone().add(&[2, 4]), [2]);
        assert_eq!(Logged::default().add(&[4]), [4]);
    }
}
