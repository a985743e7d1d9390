//! Reads the fields of a JSON request, so that every error names the parameter by its path.

use serde_json::{Map, Value};

/// What is wrong with a request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// A required parameter is absent.
    #[error("{param} is required")]
    Missing {
        /// The path of the parameter.
        param: String,
    },
    /// A parameter has the wrong type or value.
    #[error("{param}: expected {expected}, found {found}")]
    Value {
        /// The path of the parameter.
        param: String,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A parameter asks for something that this server does not have.
    #[error("{param}: {found} is not supported; accepted: {accepted}")]
    Unsupported {
        /// The path of the parameter.
        param: String,
        /// What it asks for.
        found: String,
        /// What it may ask for.
        accepted: String,
    },
}

impl InvalidRequest {
    /// The path of the parameter: `tools[1].function.name`.
    pub fn param(&self) -> &str {
        match self {
            Self::Missing { param }
            | Self::Value { param, .. }
            | Self::Unsupported { param, .. } => param,
        }
    }

    pub(crate) fn value(
        param: impl Into<String>,
        expected: impl Into<String>,
        found: &Value,
    ) -> Self {
        Self::Value { param: param.into(), expected: expected.into(), found: show(found) }
    }

    pub(crate) fn unsupported(
        param: impl Into<String>,
        found: impl Into<String>,
        accepted: impl Into<String>,
    ) -> Self {
        Self::Unsupported { param: param.into(), found: found.into(), accepted: accepted.into() }
    }
}

/// Bytes of a value that an error shows whole.
const MAX_SHOWN: usize = 64;

/// What a field accepts that must not ask for anything.
pub(crate) const NO_VALUE: &str = "no value, so leave it out";

/// A value as an error shows it: short values whole, others by what they hold.
pub(crate) fn show(value: &Value) -> String {
    let text = value.to_string();
    match value {
        _ if text.len() <= MAX_SHOWN => text,
        Value::Array(list) => format!("an array of {} values", list.len()),
        Value::Object(map) => format!("an object of {} members", map.len()),
        Value::String(text) => format!("a string of {} bytes", text.len()),
        _ => text,
    }
}

/// Values as an error lists them.
fn list(values: &[Value]) -> String {
    values.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")
}

/// The fields of one object in a request. A null counts as absent.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// The fields of the whole request.
    pub(crate) fn root(map: &'a Map<String, Value>) -> Self {
        Self { map, path: String::new() }
    }

    /// The fields of the object at `path`.
    pub(crate) fn of(value: &'a Value, path: String) -> Result<Self, InvalidRequest> {
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            value => Err(InvalidRequest::value(path, "an object", value)),
        }
    }

    /// The path of the field `key`.
    pub(crate) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        #[cfg(test)]
        asked::note(&self.path(key));
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn require(&self, key: &str) -> Result<&'a Value, InvalidRequest> {
        self.get(key).ok_or_else(|| InvalidRequest::Missing { param: self.path(key) })
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, InvalidRequest> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(read) => Ok(Some(read)),
                None => Err(InvalidRequest::value(self.path(key), expected, value)),
            },
        }
    }

    pub(crate) fn str(&self, key: &str) -> Result<Option<&'a str>, InvalidRequest> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(crate) fn require_str(&self, key: &str) -> Result<&'a str, InvalidRequest> {
        self.require(key)?;
        Ok(self.str(key)?.unwrap_or_default())
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, InvalidRequest> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>, InvalidRequest> {
        let read = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
        self.typed(key, "a whole number that is not negative", read)
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, InvalidRequest> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub(crate) fn array(&self, key: &str) -> Result<Option<&'a [Value]>, InvalidRequest> {
        self.typed(key, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<Fields<'a>>, InvalidRequest> {
        self.get(key).map(|value| Fields::of(value, self.path(key))).transpose()
    }

    /// The objects of an array, each with its path; none if it is absent.
    pub(crate) fn objects(&self, key: &str) -> Result<Vec<Fields<'a>>, InvalidRequest> {
        objects(self.array(key)?.unwrap_or_default(), &self.path(key))
    }

    /// Fails if one of these fields is there: the request asks for what does not exist here.
    pub(crate) fn refuse(&self, keys: &[&str]) -> Result<(), InvalidRequest> {
        match keys.iter().find_map(|key| Some((key, self.get(key)?))) {
            Some((key, value)) => {
                Err(InvalidRequest::unsupported(self.path(key), show(value), NO_VALUE))
            }
            None => Ok(()),
        }
    }

    /// Fails if a field is present and has none of these values.
    pub(crate) fn only(&self, key: &str, allowed: &[Value]) -> Result<(), InvalidRequest> {
        match self.get(key) {
            Some(value) if !allowed.contains(value) => {
                let accepted = list(allowed);
                Err(InvalidRequest::unsupported(self.path(key), show(value), accepted))
            }
            _ => Ok(()),
        }
    }
}

/// The objects of the array at `path`.
pub(crate) fn objects<'a>(
    values: &'a [Value],
    path: &str,
) -> Result<Vec<Fields<'a>>, InvalidRequest> {
    let fields = values.iter().enumerate();
    fields.map(|(idx, value)| Fields::of(value, format!("{path}[{idx}]"))).collect()
}

/// Which fields are requested, so that tests can hold the description of requests to it.
#[cfg(test)]
pub(crate) mod asked {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static PATHS: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    }

    /// Notes a path, without the numbers of items.
    pub(super) fn note(path: &str) {
        let parts: Vec<&str> = path.split(['[', ']']).collect();
        let path = parts.chunks(2).map(|part| part[0]).collect::<Vec<_>>().join("[]");
        PATHS.with_borrow_mut(|paths| paths.insert(path));
    }

    /// The paths that `read` asks for.
    pub(crate) fn during(read: impl FnOnce()) -> BTreeSet<String> {
        PATHS.take();
        read();
        PATHS.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_name_the_path_and_what_was_found() {
        let body = json!({"a": {"list": [{"n": -1}, 2], "s": 5, "nothing": null}});
        let root = Fields::root(body.as_object().unwrap());
        let a = root.object("a").unwrap().unwrap();
        let check = |error: InvalidRequest, param: &str, want: &str| {
            assert_eq!((error.param(), error.to_string().as_str()), (param, want));
        };
        check(a.str("s").unwrap_err(), "a.s", "a.s: expected a string, found 5");
        check(a.require("nothing").unwrap_err(), "a.nothing", "a.nothing is required");
        check(
            a.objects("list").unwrap_err(),
            "a.list[1]",
            "a.list[1]: expected an object, found 2",
        );
        let first = Fields::of(&body["a"]["list"][0], "a.list[0]".to_owned()).unwrap();
        check(
            first.count("n").unwrap_err(),
            "a.list[0].n",
            "a.list[0].n: expected a whole number that is not negative, found -1",
        );
        check(
            a.refuse(&["b", "s"]).unwrap_err(),
            "a.s",
            "a.s: 5 is not supported; accepted: no value, so leave it out",
        );
        check(
            a.only("s", &[json!(4), json!("x")]).unwrap_err(),
            "a.s",
            "a.s: 5 is not supported; accepted: 4, \"x\"",
        );
        check(
            a.only("list", &[json!([])]).unwrap_err(),
            "a.list",
            "a.list: [{\"n\":-1},2] is not supported; accepted: []",
        );
        for (value, want) in [
            (json!(["a"]), "[\"a\"]"),
            (json!({"a": null}), "{\"a\":null}"),
            (json!(vec![0; 40]), "an array of 40 values"),
            (json!({"a": "b".repeat(64), "c": 1}), "an object of 2 members"),
            (json!("é".repeat(40)), "a string of 80 bytes"),
        ] {
            assert_eq!(show(&value), want);
        }
        assert_eq!(a.str("nothing"), Ok(None));
        assert!(root.refuse(&["b"]).is_ok() && a.only("s", &[json!(5)]).is_ok());
    }
}
