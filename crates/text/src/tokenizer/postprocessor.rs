//! Post-processors of a `tokenizer.json`: how many tokens they add to a text, and how often they repeat it.
//!
//! The `tokenizers` crate expands templates without a limit, for every text, so the tokens are counted before it reads
//! the file.

use serde_json::Value;

/// Post-processors of a sequence; each one goes over a text.
const MAX_PROCESSORS: usize = 64;
/// Tokens that templates add to a text, those of all templates together.
const MAX_ADDED: usize = 1024;

/// Checks a `post_processor`.
///
/// # Errors
/// If there are too many, or one of them adds too much.
pub(super) fn check(value: &Value) -> Result<(), String> {
    let mut count = Count::default();
    count.add(value)?;
    if count.n_processors > MAX_PROCESSORS {
        return Err(format!(
            "{} post-processors, at most {MAX_PROCESSORS} are supported",
            count.n_processors
        ));
    }
    if count.n_added > MAX_ADDED {
        return Err(format!(
            "the templates of the `post_processor` add {} tokens to a text, at most {MAX_ADDED} are allowed",
            count.n_added
        ));
    }
    Ok(())
}

#[derive(Default)]
struct Count {
    n_processors: usize,
    n_added: usize,
}

impl Count {
    /// Adds one, whatever its type says: the crate finds the type by the members.
    fn add(&mut self, value: &Value) -> Result<(), String> {
        self.n_processors += usize::from(value.is_object());
        for processor in value["processors"].as_array().into_iter().flatten() {
            self.add(processor)?;
        }
        for (name, sequences) in [("single", &["A"][..]), ("pair", &["A", "B"])] {
            let pieces = value[name].as_array().map_or(&[][..], Vec::as_slice);
            for sequence in sequences {
                let is_same = |piece: &&Value| piece["Sequence"]["id"] == *sequence;
                let n = pieces.iter().filter(is_same).count();
                if n > 1 {
                    return Err(format!(
                        "the template `{name}` of the `post_processor` repeats the text {n} times"
                    ));
                }
            }
            for piece in pieces {
                let id = piece["SpecialToken"]["id"].as_str();
                let ids = id.and_then(|id| value["special_tokens"][id]["ids"].as_array());
                self.n_added = self.n_added.saturating_add(ids.map_or(0, Vec::len));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn templates_are_counted_before_they_are_expanded() {
        let piece = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let template = |single: Vec<Value>, n_ids: usize| {
            json!({
                "type": "TemplateProcessing",
                "single": single,
                "pair": [],
                "special_tokens": {"x": {"id": "x", "ids": vec![1; n_ids], "tokens": vec!["x"; n_ids]}},
            })
        };
        let sequence = |all: Vec<Value>| json!({"type": "Sequence", "processors": all});
        let usual = template(vec![piece("x"), text.clone(), piece("x")], 1);
        let too_many = "the templates of the `post_processor` add 1025 tokens to a text, at most 1024 are allowed";
        for (value, want) in [
            (Value::Null, ""),
            (json!({"type": "ByteLevel"}), ""),
            (usual.clone(), ""),
            (template(vec![piece("x"); 512], 2), ""),
            (template(vec![piece("x"); 1025], 1), too_many),
            (
                template(vec![piece("x"); 10_000], 10_000),
                "the templates of the `post_processor` add 100000000 tokens to a text, at most 1024 are allowed",
            ),
            (
                sequence(vec![template(vec![piece("x"); 1024], 1), template(vec![piece("x")], 1)]),
                too_many,
            ),
            (
                template(vec![text.clone(), text], 1),
                "the template `single` of the `post_processor` repeats the text 2 times",
            ),
            (sequence(vec![usual.clone(); 63]), ""),
            (sequence(vec![usual; 64]), "65 post-processors, at most 64 are supported"),
        ] {
            assert_eq!(check(&value).err().unwrap_or_default(), want);
        }
    }
}
