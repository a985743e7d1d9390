//! Where the references in a JSON schema lead: JSON pointers, with the escapes of a URI's fragment,
//! and names that `$anchor` gives.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::Value;

use super::schema::push_segment;

/// Keywords whose values are data, not schemas.
pub(super) const DATA: [&str; 4] = ["const", "enum", "default", "examples"];

/// Looks up references in one schema.
pub(super) struct References<'a> {
    root: &'a Value,
    anchors: HashMap<&'a str, Vec<Target<'a>>>,
}

/// The target of a reference.
#[derive(Clone)]
pub(super) struct Target<'a> {
    pub(super) schema: &'a Value,
    /// Its JSON pointer.
    pub(super) pointer: String,
}

impl<'a> References<'a> {
    /// Finds the anchors of a schema that is not nested too deeply.
    pub(super) fn new(root: &'a Value) -> Self {
        let mut references = Self { root, anchors: HashMap::new() };
        references.find_anchors(root, &mut String::new());
        references
    }

    fn find_anchors(&mut self, value: &'a Value, at: &mut String) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(name)) = members.get("$anchor") {
                    let target = Target { schema: value, pointer: at.clone() };
                    self.anchors.entry(name).or_default().push(target);
                }
                for (keyword, member) in members {
                    if !DATA.contains(&keyword.as_str()) {
                        let len = at.len();
                        push_segment(at, keyword);
                        self.find_anchors(member, at);
                        at.truncate(len);
                    }
                }
            }
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    let len = at.len();
                    push_segment(at, &i.to_string());
                    self.find_anchors(item, at);
                    at.truncate(len);
                }
            }
            _ => {}
        }
    }

    /// The target of a reference, or why there is none.
    pub(super) fn resolve(&self, reference: &str) -> Result<Target<'a>, String> {
        let Some(fragment) = reference.strip_prefix('#') else {
            return Err(format!("`{reference}` leads outside the schema: only `#…` can be read"));
        };
        let Some(fragment) = unescape(fragment) else {
            return Err(format!(
                "`{reference}` has a `%` that is not followed by the code of text"
            ));
        };
        if fragment.is_empty() || fragment.starts_with('/') {
            return match self.root.pointer(&fragment) {
                Some(schema) => Ok(Target { schema, pointer: fragment.into_owned() }),
                None => Err(format!("`{reference}` leads to nothing in the schema")),
            };
        }
        match self.anchors.get(fragment.as_ref()).map(Vec::as_slice) {
            Some([target]) => Ok(target.clone()),
            Some(_) => Err(format!("`{reference}` is the `$anchor` of more than one schema")),
            None => Err(format!("`{reference}` leads to nothing in the schema")),
        }
    }
}

/// Whether the library reads a reference as it is meant: it knows neither escapes nor anchors.
pub(super) fn is_plain(reference: &str) -> bool {
    let is_pointer = reference == "#" || reference.starts_with("#/");
    is_pointer && reference != "#/" && !reference.contains(['~', '%'])
}

/// The fragment of a URI without its escapes; none if they are no text.
fn unescape(fragment: &str) -> Option<Cow<'_, str>> {
    if !fragment.contains('%') {
        return Some(Cow::Borrowed(fragment));
    }
    let mut parts = fragment.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let code = part.get(..2).filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_lead_by_pointers_and_anchors() {
        let root = json!({
            "$defs": {"a b": {"$anchor": "space"}, "c/d~": 1, "": 2, "é%": 3, "x": {"$anchor": "x"}},
            "items": [{"$anchor": "twice"}, {"$anchor": "twice"}],
            "const": {"$anchor": "data"},
        });
        let references = References::new(&root);
        let check =
            |reference: &str, want: Result<&str, &str>| match (references.resolve(reference), want)
            {
                (Ok(target), Ok(pointer)) => {
                    assert_eq!(target.pointer, pointer, "{reference}");
                    assert_eq!(Some(target.schema), root.pointer(pointer), "{reference}");
                }
                (Err(problem), Err(want)) => assert!(problem.contains(want), "{problem}"),
                (got, _) => panic!("{reference}: {:?}", got.map(|target| target.pointer)),
            };
        check("#", Ok(""));
        check("#/$defs/a b", Ok("/$defs/a b"));
        check("#/$defs/a%20b", Ok("/$defs/a b"));
        check("#/%24defs/c~1d~0", Ok("/$defs/c~1d~0"));
        check("#/$defs/%C3%a9%25", Ok("/$defs/é%"));
        check("#/$defs/", Ok("/$defs/"));
        check("#/items/1", Ok("/items/1"));
        check("#space", Ok("/$defs/a b"));
        check("#%78", Ok("/$defs/x"));
        check("#/$defs/b", Err("leads to nothing"));
        check("#data", Err("leads to nothing"));
        check("#twice", Err("more than one schema"));
        check("#/%2", Err("`%`"));
        check("#/%+1", Err("`%`"));
        check("#/%ff", Err("`%`"));
        check("a.json#/b", Err("leads outside"));
    }
}
