//! Lists in parts, as OpenAI's API gives them.

use crate::error::ApiError;
use serde::Deserialize;
use serde_json::{Value, json};

/// Which part of a list is asked for.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct PageQuery {
    after: Option<String>,
    limit: Option<usize>,
    order: Option<Order>,
}

/// From the first to the last, or the other way round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    Asc,
    Desc,
}

impl PageQuery {
    /// The part of a list, which comes in ascending order, and whether more follows it.
    pub(crate) fn page<T>(
        self,
        mut list: Vec<T>,
        default: Order,
        id: impl Fn(&T) -> &str,
    ) -> Result<(Vec<T>, bool), ApiError> {
        let limit = self.limit.unwrap_or(20);
        if !(1..=100).contains(&limit) {
            let message = format!("`limit` is {limit}, and must be 1 to 100");
            return Err(ApiError::invalid("limit", message));
        }
        if self.order.unwrap_or(default) == Order::Desc {
            list.reverse();
        }
        if let Some(after) = self.after {
            let at = list.iter().position(|item| id(item) == after).ok_or_else(|| {
                ApiError::invalid("after", format!("the list has no item `{after}`"))
            })?;
            list.drain(..=at);
        }
        let has_more = list.len() > limit;
        list.truncate(limit);
        Ok((list, has_more))
    }
}

/// A list of objects, or a part of one.
pub(crate) fn list(data: &[Value], has_more: bool) -> Value {
    let id = |item: Option<&Value>| item.map(|item| item["id"].clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    json!({"object": "list", "data": data, "first_id": first_id, "last_id": last_id,
           "has_more": has_more})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_lists() {
        let check = |query: Value, want: Result<(&[&str], bool), &str>| {
            let query: PageQuery = serde_json::from_value(query).expect("a query");
            let what = format!("{query:?}");
            let got = query.page(vec!["a", "b", "c"], Order::Desc, |item| item);
            let got = got.map_err(|error| error.body()["error"]["param"].clone());
            let want = want.map(|(list, more)| (list.to_vec(), more)).map_err(|param| json!(param));
            assert_eq!(got, want, "{what}");
        };
        check(json!({}), Ok((&["c", "b", "a"], false)));
        check(json!({"order": "asc", "limit": 2}), Ok((&["a", "b"], true)));
        check(json!({"order": "asc", "after": "b"}), Ok((&["c"], false)));
        check(json!({"after": "b", "limit": 1}), Ok((&["a"], false)));
        check(json!({"after": "a"}), Ok((&[], false)));
        check(json!({"after": "d"}), Err("after"));
        check(json!({"limit": 0}), Err("limit"));
        check(json!({"limit": 101}), Err("limit"));
        let first = list(&[json!({"id": "a"}), json!({"id": "b"})], true);
        assert_eq!((&first["first_id"], &first["last_id"]), (&json!("a"), &json!("b")));
        assert_eq!(list(&[], false)["first_id"], Value::Null);
    }
}
