//! What requests asked to keep: responses and chat completions, in memory, for those who show the
//! same key.
//!
//! Their number and their bytes are limited; the oldest go first. A response that continues another
//! shares its items, which therefore last as long as any response that follows, and count until then.

use crate::error::ApiError;
use serde_json::Value;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Whose it is: a hash of the key that the request showed, or of nothing where there are no keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) [u8; 32]);

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Response,
    Completion,
}

/// What is to be kept.
#[derive(Debug)]
pub(crate) struct NewEntry {
    pub(crate) owner: Owner,
    pub(crate) kind: Kind,
    pub(crate) id: String,
    /// The answer as JSON, without the items of its output.
    pub(crate) body: String,
    /// Items or messages of the request, without those of the response that it continues.
    pub(crate) input: Vec<Item>,
    /// Items of a response's output.
    pub(crate) output: Vec<Item>,
    /// What it continues.
    pub(crate) previous: Option<Arc<Entry>>,
}

/// An item or a message, as JSON.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) id: String,
    pub(crate) json: String,
    pub(crate) n_values: usize,
}

impl Item {
    /// An item with its id.
    pub(crate) fn of(item: &Value) -> Self {
        let id = item["id"].as_str().unwrap_or_default().to_owned();
        let mut json = item.to_string();
        json.shrink_to_fit();
        Self { id, json, n_values: count(item) }
    }

    /// The item itself.
    pub(crate) fn value(&self) -> Result<Value, ApiError> {
        from_json(&self.json)
    }

    fn n_bytes(&self) -> usize {
        size_of::<Self>() + self.id.capacity() + self.json.capacity()
    }
}

/// What was kept as JSON.
pub(crate) fn from_json(text: &str) -> Result<Value, ApiError> {
    serde_json::from_str(text).map_err(|error| ApiError::internal(error.to_string()))
}

/// Values of JSON in a value, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// A size in memory and in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) n_bytes: usize,
    pub(crate) n_values: usize,
}

impl Size {
    fn add(&mut self, item: &Item) {
        self.n_bytes = self.n_bytes.saturating_add(item.json.len());
        self.n_values = self.n_values.saturating_add(item.n_values);
    }
}

/// What is kept. Its bytes count until it is dropped, which may be later than it can be found.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) new: NewEntry,
    /// Of all items, those that it continues included.
    pub(crate) size: Size,
    n_bytes: usize,
    kept_bytes: Arc<AtomicUsize>,
}

impl Entry {
    fn new(mut new: NewEntry, kept_bytes: Arc<AtomicUsize>) -> Self {
        new.body.shrink_to_fit();
        let mut size = new.previous.as_ref().map(|entry| entry.size).unwrap_or_default();
        let mut n_bytes = size_of::<Self>() + new.id.capacity() + new.body.capacity();
        for item in new.input.iter().chain(&new.output) {
            size.add(item);
            n_bytes += item.n_bytes();
        }
        kept_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        Self { new, size, n_bytes, kept_bytes }
    }

    /// The answer, without the items of its output.
    pub(crate) fn body(&self) -> Result<Value, ApiError> {
        from_json(&self.new.body)
    }

    /// It and what it continues, the first of them first.
    fn lineage(&self) -> Vec<&Self> {
        let mut entries = vec![self];
        let mut next = self.new.previous.as_deref();
        while let Some(entry) = next {
            entries.push(entry);
            next = entry.new.previous.as_deref();
        }
        entries.reverse();
        entries
    }

    /// The items of the conversation up to its answer.
    pub(crate) fn input(&self) -> impl DoubleEndedIterator<Item = &Item> {
        self.lineage().into_iter().flat_map(move |entry| {
            let output = if std::ptr::eq(entry, self) { &[][..] } else { &entry.new.output };
            entry.new.input.iter().chain(output)
        })
    }

    /// The items of the conversation, its answer included.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Item> {
        self.input().chain(&self.new.output)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.kept_bytes.fetch_sub(self.n_bytes, Ordering::Relaxed);
        // One after another: a long conversation would overflow the stack.
        let mut next = self.new.previous.take();
        while let Some(mut entry) = next.and_then(Arc::into_inner) {
            next = entry.new.previous.take();
        }
    }
}

/// All that is kept.
#[derive(Debug)]
pub(crate) struct Stored {
    max_entries: usize,
    max_bytes: usize,
    kept_bytes: Arc<AtomicUsize>,
    entries: Mutex<VecDeque<Arc<Entry>>>, // the oldest first
}

impl Stored {
    /// Room for so many entries and bytes.
    pub(crate) fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self { max_entries, max_bytes, kept_bytes: Arc::default(), entries: Mutex::default() }
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an entry, in the place of the oldest where there is no room for it.
    pub(crate) fn add(&self, new: NewEntry) {
        let mut entries = self.entries();
        entries.push_back(Arc::new(Entry::new(new, self.kept_bytes.clone())));
        while entries.len() > self.max_entries
            || self.kept_bytes.load(Ordering::Relaxed) > self.max_bytes
        {
            if entries.pop_front().is_none() {
                break;
            }
        }
    }

    /// The entry with this id.
    pub(crate) fn get(&self, owner: Owner, kind: Kind, id: &str) -> Option<Arc<Entry>> {
        let entries = self.entries();
        entries.iter().find(|entry| is(entry, owner, kind, id)).cloned()
    }

    /// Drops an entry; whether it was there.
    pub(crate) fn remove(&self, owner: Owner, kind: Kind, id: &str) -> bool {
        let mut entries = self.entries();
        let at = entries.iter().position(|entry| is(entry, owner, kind, id));
        at.and_then(|at| entries.remove(at)).is_some()
    }

    /// All entries of an owner, the oldest first.
    fn all(&self, owner: Owner, kind: Kind) -> Vec<Arc<Entry>> {
        let entries = self.entries();
        let own = |entry: &&Arc<Entry>| entry.new.owner == owner && entry.new.kind == kind;
        entries.iter().filter(own).cloned().collect()
    }

    /// The items with these ids, of an owner's responses, as JSON, with their size; those that are
    /// not found are absent.
    pub(crate) fn items(
        &self,
        owner: Owner,
        ids: &HashSet<&str>,
    ) -> (HashMap<String, String>, Size) {
        let (mut found, mut size) = (HashMap::new(), Size::default());
        for entry in self.all(owner, Kind::Response).iter().rev() {
            for item in entry.new.output.iter().chain(&entry.new.input) {
                if ids.contains(item.id.as_str()) && !found.contains_key(&item.id) {
                    size.add(item);
                    found.insert(item.id.clone(), item.json.clone());
                }
            }
        }
        (found, size)
    }
}

fn is(entry: &Entry, owner: Owner, kind: Kind, id: &str) -> bool {
    entry.new.id == id && entry.new.owner == owner && entry.new.kind == kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ME: Owner = Owner([1; 32]);

    fn item(id: &str, n_bytes: usize) -> Item {
        Item::of(&json!({"id": id, "text": "x".repeat(n_bytes)}))
    }

    fn entry(id: &str, n_bytes: usize, previous: Option<Arc<Entry>>) -> NewEntry {
        NewEntry {
            owner: ME,
            kind: Kind::Response,
            id: id.to_owned(),
            body: "{}".to_owned(),
            input: vec![item(&format!("in {id}"), n_bytes)],
            output: vec![item(&format!("out {id}"), 1)],
            previous,
        }
    }

    fn ids(stored: &Stored) -> Vec<String> {
        stored.all(ME, Kind::Response).iter().map(|entry| entry.new.id.clone()).collect()
    }

    fn get(stored: &Stored, id: &str) -> Option<Arc<Entry>> {
        stored.get(ME, Kind::Response, id)
    }

    #[test]
    fn the_oldest_go_first() {
        let stored = Stored::new(3, usize::MAX);
        for id in ["a", "b", "c", "d"] {
            stored.add(entry(id, 1, None));
        }
        assert_eq!(ids(&stored), ["b", "c", "d"]);
        let stored = Stored::new(usize::MAX, 5_000);
        for id in ["a", "b", "c"] {
            stored.add(entry(id, 1_500, None));
        }
        assert_eq!(ids(&stored), ["b", "c"]);
        // One that has no room alone is not kept.
        stored.add(entry("d", 6_000, None));
        assert_eq!(ids(&stored), Vec::<String>::new());
        assert_eq!(stored.kept_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn bytes_are_those_of_what_is_kept() {
        let stored = Stored::new(8, 1 << 20);
        let bytes = || stored.kept_bytes.load(Ordering::Relaxed);
        stored.add(entry("a", 10_000, None));
        let one = bytes();
        assert!((10_000..11_000).contains(&one), "{one}");
        stored.add(entry("b", 20_000, get(&stored, "a")));
        let both = bytes();
        assert!((30_000..32_000).contains(&both), "{both}");
        // What another continues stays, and counts.
        assert!(stored.remove(ME, Kind::Response, "a"));
        assert_eq!((bytes(), get(&stored, "a").is_none()), (both, true));
        assert!(!stored.remove(ME, Kind::Response, "a"));
        assert!(stored.remove(ME, Kind::Response, "b"));
        assert_eq!(bytes(), 0);
    }

    #[test]
    fn what_is_continued_lasts() {
        let stored = Stored::new(2, usize::MAX);
        for (id, before) in [("a", ""), ("b", "a"), ("c", "b"), ("d", "c")] {
            stored.add(entry(id, 1, get(&stored, before)));
        }
        assert_eq!(ids(&stored), ["c", "d"]);
        let last = get(&stored, "d").expect("the newest");
        let texts = |items: Vec<&Item>| items.iter().map(|i| i.id.clone()).collect::<Vec<_>>();
        let all = ["in a", "out a", "in b", "out b", "in c", "out c", "in d", "out d"];
        assert_eq!(texts(last.items().collect()), all);
        assert_eq!(texts(last.input().collect()), all[..7]);
        assert_eq!(last.size.n_values, 8 * 3);
    }

    #[test]
    fn a_long_conversation_is_dropped() {
        let stored = Stored::new(1, usize::MAX);
        for n in 0..100_000 {
            let before = get(&stored, &format!("{}", n - 1));
            stored.add(entry(&format!("{n}"), 1, before));
        }
        assert!(stored.remove(ME, Kind::Response, "99999"));
        assert_eq!(stored.kept_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn others_find_nothing() {
        let stored = Stored::new(8, 1 << 20);
        stored.add(entry("a", 1, None));
        let other = Owner([2; 32]);
        assert!(stored.get(other, Kind::Response, "a").is_none());
        assert!(stored.get(ME, Kind::Completion, "a").is_none());
        assert!(!stored.remove(other, Kind::Response, "a"));
        let wanted = HashSet::from(["in a", "out a", "in b"]);
        let (found, size) = stored.items(ME, &wanted);
        assert_eq!((found.len(), size.n_values), (2, 6));
        assert_eq!(found["in a"], item("in a", 1).json);
        assert_eq!(stored.items(other, &wanted).0.len(), 0);
    }
}
