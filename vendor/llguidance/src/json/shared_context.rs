use crate::{json::schema::OptSchemaExt, regex_to_lark, HashMap, HashSet};
use anyhow::{anyhow, bail, ensure, Result};
use derivre::{raw::ExprSet, Regex, RegexAst, RegexBuilder};

use crate::{CancellationHandle, Cancelled};

use super::{
    context::Context,
    schema::{ObjectSchema, Schema, IMPLEMENTED, META_AND_ANNOTATIONS},
};

pub struct SharedContext {
    defs: HashMap<String, Schema>,
    seen: HashSet<String>,
    n_compiled: usize,
    n_copied: usize,
    n_compared: usize,
    pending_warnings: Vec<String>,
    pattern_cache: PatternPropertyCache,
}

pub struct PatternPropertyCache {
    inner: HashMap<String, Regex>,
    /// What is left for all checks of this schema's expressions, of whatever kind.
    fuel: u64,
    cancellation: Option<CancellationHandle>,
}

/// Fuel of a single check.
const CHECK_LIMIT: u64 = 20_000;
/// Fuel of all checks together.
const ALL_CHECKS_LIMIT: u64 = 5_000_000;
/// Copying so many expression nodes costs as much as making one.
const COPIES_PER_FUEL: u64 = 8;
/// Nodes of schemas that are copied, and pairs of schemas that are compared.
const MAX_COPIED: usize = 300_000;
const MAX_COMPARED: usize = 10_000_000;

const TOO_MANY_COPIES: &str =
    "schema too large: alternatives and references multiply to too many copies";

impl Default for PatternPropertyCache {
    fn default() -> Self {
        Self {
            inner: HashMap::default(),
            fuel: ALL_CHECKS_LIMIT,
            cancellation: None,
        }
    }
}

impl PatternPropertyCache {
    /// Limit the expressions of one check to what is left for all.
    pub(crate) fn limit(&self, exprset: &mut ExprSet) {
        exprset.set_cost_limit(self.fuel);
        exprset.set_cancellation(self.cancellation.as_ref().map(|handle| handle.flag()));
    }

    pub(crate) fn charge(&mut self, fuel: u64) {
        self.fuel = self.fuel.saturating_sub(fuel);
    }

    pub fn is_match(&mut self, regex: &str, value: &str) -> Result<bool> {
        self.charge(1 + (regex.len() + value.len()) as u64 / COPIES_PER_FUEL);
        ensure!(
            self.fuel > 0,
            "regular expressions of the schema are too complex"
        );
        let lark_regex = regex_to_lark(regex, "dw");
        if !self.inner.contains_key(lark_regex.as_str()) {
            let mut builder = RegexBuilder::new();
            self.limit(builder.exprset_mut());
            let eref = builder.mk_regex_for_serach(lark_regex.as_str())?;
            self.charge(builder.exprset().cost());
            let cost0 = builder.exprset().cost();
            let rx = builder.into_regex_limited(eref, CHECK_LIMIT);
            self.charge(rx.as_ref().map_or(CHECK_LIMIT, |rx| rx.cost() - cost0));
            self.inner.insert(lark_regex.clone(), rx?);
        }

        let fuel = self.fuel;
        let rx = self.inner.get_mut(lark_regex.as_str()).unwrap();
        let cost0 = rx.cost();
        rx.exprset_mut().set_cost_limit(cost0.saturating_add(fuel));
        let res = rx.is_match(value);
        let cost = rx.cost() - cost0;
        let exhausted = rx.exprset_mut().is_exhausted();
        self.charge(cost);
        ensure!(
            !exhausted,
            "regular expressions of the schema are too complex"
        );
        Ok(res)
    }

    pub fn check_disjoint(&mut self, regexes: &[&String]) -> Result<()> {
        // TODO cache something?
        let mut builder = RegexBuilder::new();
        self.limit(builder.exprset_mut());
        let erefs = regexes
            .iter()
            .map(|regex| {
                let regex = regex_to_lark(regex, "dw");
                builder.mk_regex_for_serach(regex.as_str())
            })
            .collect::<Result<Vec<_>>>()?;
        for (ai, a) in erefs.iter().enumerate() {
            for (bi, b) in erefs.iter().enumerate() {
                if ai >= bi {
                    continue;
                }
                let intersect = builder.mk(&RegexAst::And(vec![
                    RegexAst::ExprRef(*a),
                    RegexAst::ExprRef(*b),
                ]))?;
                let cost0 = builder.exprset().cost();
                let rx = builder.to_regex_limited(intersect, CHECK_LIMIT);
                let cost = rx.as_ref().map_or(CHECK_LIMIT, |rx| rx.cost() - cost0);
                // the copy that the check was made on
                let copied = builder.exprset().len() as u64 / COPIES_PER_FUEL;
                builder.exprset_mut().charge(cost + copied);
                let mut rx = rx.map_err(|_| {
                    anyhow!(
                        "can't determine if patternProperty regexes /{}/ and /{}/ are disjoint",
                        regex_to_lark(regexes[ai], ""),
                        regex_to_lark(regexes[bi], "")
                    )
                })?;
                if !rx.always_empty() {
                    return Err(anyhow!(
                        "patternProperty regexes /{}/ and /{}/ are not disjoint",
                        regex_to_lark(regexes[ai], ""),
                        regex_to_lark(regexes[bi], "")
                    ));
                }
            }
        }

        self.charge(builder.exprset().cost());
        Ok(())
    }

    pub fn property_schema<'a>(&mut self, obj: &'a ObjectSchema, prop: &str) -> Result<&'a Schema> {
        if let Some(schema) = obj.properties.get(prop) {
            return Ok(schema);
        }

        for (key, schema) in obj.pattern_properties.iter() {
            if self.is_match(key, prop)? {
                return Ok(schema);
            }
        }

        Ok(obj.additional_properties.schema_ref())
    }
}

impl SharedContext {
    pub fn new(cancellation: Option<CancellationHandle>) -> Self {
        SharedContext {
            defs: HashMap::default(),
            seen: HashSet::default(),
            n_compiled: 0,
            n_copied: 0,
            n_compared: 0,
            pending_warnings: Vec::new(),
            pattern_cache: PatternPropertyCache {
                cancellation,
                ..PatternPropertyCache::default()
            },
        }
    }
}

impl SharedContext {
    fn is_cancelled(&self) -> bool {
        let cancellation = &self.pattern_cache.cancellation;
        cancellation.as_ref().is_some_and(|c| c.is_cancelled())
    }
}

impl Context<'_> {
    pub fn insert_ref(&self, uri: &str, schema: Schema) {
        self.shared
            .borrow_mut()
            .defs
            .insert(uri.to_string(), schema);
    }

    pub fn get_ref_cloned(&self, uri: &str) -> Result<Option<Schema>> {
        let mut shared = self.shared.borrow_mut();
        let shared = &mut *shared;
        let Some(schema) = shared.defs.get(uri) else {
            return Ok(None);
        };
        shared.n_copied += schema.size();
        if shared.n_copied > MAX_COPIED {
            bail!(TOO_MANY_COPIES);
        }
        Ok(Some(schema.clone()))
    }

    /// Copy a schema that is intersected with several others.
    pub fn copy(&self, schema: &Schema) -> Result<Schema> {
        let mut shared = self.shared.borrow_mut();
        shared.n_copied += schema.size();
        if shared.n_copied > MAX_COPIED {
            bail!(TOO_MANY_COPIES);
        }
        Ok(schema.clone())
    }

    /// Whether another pair of schemas may be compared.
    pub fn may_compare(&self) -> bool {
        let mut shared = self.shared.borrow_mut();
        shared.n_compared += 1;
        shared.n_compared <= MAX_COMPARED && !shared.is_cancelled()
    }

    pub fn mark_seen(&self, uri: &str) {
        self.shared.borrow_mut().seen.insert(uri.to_string());
    }

    pub fn been_seen(&self, uri: &str) -> bool {
        self.shared.borrow().seen.contains(uri)
    }

    pub fn is_valid_keyword(&self, keyword: &str) -> bool {
        if !self.draft.is_known_keyword(keyword)
            || IMPLEMENTED.contains(&keyword)
            || META_AND_ANNOTATIONS.contains(&keyword)
        {
            return true;
        }
        false
    }

    pub fn increment(&self) -> Result<()> {
        let mut shared = self.shared.borrow_mut();
        if shared.is_cancelled() {
            bail!(Cancelled);
        }
        shared.n_compiled += 1;
        if shared.n_compiled > self.options.max_size {
            bail!("schema too large");
        }
        Ok(())
    }

    pub fn record_warning(&self, msg: String) {
        self.shared.borrow_mut().pending_warnings.push(msg);
    }

    pub fn property_schema<'a>(&self, obj: &'a ObjectSchema, prop: &str) -> Result<&'a Schema> {
        self.shared
            .borrow_mut()
            .pattern_cache
            .property_schema(obj, prop)
    }

    pub fn property_schema_matches(&self, pattern: &str, name: &str) -> Result<bool> {
        self.shared
            .borrow_mut()
            .pattern_cache
            .is_match(pattern, name)
    }

    pub fn check_disjoint_pattern_properties(&self, regexes: &[&String]) -> Result<()> {
        self.shared
            .borrow_mut()
            .pattern_cache
            .check_disjoint(regexes)
    }

    pub fn into_result(self, schema: Schema) -> BuiltSchema {
        let mut shared = self.shared.borrow_mut();
        BuiltSchema {
            schema,
            definitions: std::mem::take(&mut shared.defs),
            warnings: std::mem::take(&mut shared.pending_warnings),
            pattern_cache: std::mem::take(&mut shared.pattern_cache),
        }
    }
}

pub struct BuiltSchema {
    pub schema: Schema,
    pub definitions: HashMap<String, Schema>,
    pub warnings: Vec<String>,
    pub pattern_cache: PatternPropertyCache,
}

impl BuiltSchema {
    pub fn simple(schema: Schema) -> Self {
        BuiltSchema {
            schema,
            definitions: HashMap::default(),
            warnings: Vec::new(),
            pattern_cache: PatternPropertyCache::default(),
        }
    }
}
