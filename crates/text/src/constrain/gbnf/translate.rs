//! From rules to Lark.

use std::fmt::Write;

use super::{Item, Part, Rule, Sequence};
use crate::constrain::lark;

/// The grammar as text. `rules[0]` is where it starts.
pub(super) fn translate(rules: &[Rule]) -> String {
    let regular = regular_rules(rules);
    let mut out = Translator { regular: &regular, parts: Vec::new() };
    let mut text = format!("start: {}\n", out.rule(0));
    for (id, rule) in rules.iter().enumerate() {
        let body = out.alternatives(&rule.alternatives, regular[id]);
        let _ = writeln!(text, "{}: {body} // {}", out.rule(id), rule.name);
    }
    for part in &out.parts {
        let _ = writeln!(text, "{part}");
    }
    text
}

/// Which rules do not lead back to themselves, nor to a rule that does: a terminal can describe
/// them.
fn regular_rules(rules: &[Rule]) -> Vec<bool> {
    let mut waits_for = vec![0_usize; rules.len()];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); rules.len()];
    for (id, rule) in rules.iter().enumerate() {
        let mut used = Vec::new();
        rules_used(&rule.alternatives, &mut used);
        used.sort_unstable();
        used.dedup();
        waits_for[id] = used.len();
        used.into_iter().for_each(|it| users[it].push(id));
    }
    let mut ready: Vec<usize> = (0..rules.len()).filter(|&id| waits_for[id] == 0).collect();
    let mut regular = vec![false; rules.len()];
    while let Some(id) = ready.pop() {
        regular[id] = true;
        for &user in &users[id] {
            waits_for[user] -= 1;
            if waits_for[user] == 0 {
                ready.push(user);
            }
        }
    }
    regular
}

fn rules_used(alternatives: &[Sequence], used: &mut Vec<usize>) {
    for item in alternatives.iter().flatten() {
        match &item.part {
            Part::Rule(id) => used.push(*id),
            Part::Group(inner) => rules_used(inner, used),
            Part::Literal(_) | Part::Class(_) => {}
        }
    }
}

struct Translator<'a> {
    regular: &'a [bool],
    parts: Vec<String>, // definitions that were cut out of rules
}

impl Translator<'_> {
    fn is_regular(&self, part: &Part) -> bool {
        match part {
            Part::Literal(_) | Part::Class(_) => true,
            Part::Rule(id) => self.regular[*id],
            Part::Group(inner) => inner.iter().flatten().all(|item| self.is_regular(&item.part)),
        }
    }

    /// The name of a rule: those of terminals are in capitals.
    fn rule(&self, id: usize) -> String {
        format!("{}{id}", if self.regular[id] { 'T' } else { 'r' })
    }

    /// Defines a part by itself and gives its name.
    fn define(&mut self, body: &str, terminal: bool) -> String {
        let name = format!("{}{}", if terminal { 'P' } else { 'p' }, self.parts.len());
        self.parts.push(format!("{name}: {body}"));
        name
    }

    /// The alternatives of a rule or a group, in a terminal or not.
    fn alternatives(&mut self, alternatives: &[Sequence], terminal: bool) -> String {
        let sequences = alternatives.iter().map(|sequence| match terminal {
            true => self.items(sequence, true),
            false => self.sequence(sequence),
        });
        sequences.collect::<Vec<_>>().join(" | ")
    }

    /// A sequence outside terminals: its longest runs of regular parts become terminals.
    fn sequence(&mut self, sequence: &[Item]) -> String {
        let mut parts = Vec::new();
        let mut rest = sequence;
        while !rest.is_empty() {
            let n_regular = rest.iter().take_while(|item| self.is_regular(&item.part)).count();
            let (run, after) = rest.split_at(n_regular.max(1));
            parts.push(if n_regular > 0 {
                let body = self.items(run, true);
                self.define(&body, true)
            } else {
                self.items(run, false)
            });
            rest = after;
        }
        if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") }
    }

    /// Items, all of them in a terminal or none.
    fn items(&mut self, items: &[Item], terminal: bool) -> String {
        let parts = items.iter().map(|item| {
            let part = match &item.part {
                Part::Literal(text) => lark::literal(text),
                Part::Class(class) => format!("/{class}/"),
                Part::Rule(id) => self.rule(*id),
                // Groups inside groups may be deeper than Lark's may.
                Part::Group(inner) => {
                    let body = self.alternatives(inner, terminal);
                    self.define(&body, terminal)
                }
            };
            repeated(part, item)
        });
        let parts: Vec<String> = parts.collect();
        if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") }
    }
}

fn repeated(part: String, item: &Item) -> String {
    match (item.min, item.max) {
        (1, Some(1)) => part,
        (0, None) => format!("{part}*"),
        (1, None) => format!("{part}+"),
        (0, Some(1)) => format!("{part}?"),
        (_, Some(0)) => "\"\"".to_owned(),
        (min, Some(max)) => format!("{part}{{{min},{max}}}"),
        (min, None) => format!("{part}{{{min},}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::*;

    #[test]
    fn rules_that_lead_back_to_themselves_are_cut_at_the_others() {
        let check = |text: &str, want: &str| {
            assert_eq!(translate(&parse(text).unwrap()), want, "{text}");
        };
        check(
            "root ::= a{2} | \"x/\\n\"\na ::= [a-c/] . | b?\nb ::=",
            "start: T0\n\
             T0: T1{2,2} | \"x/\\n\" // root\n\
             T1: /[\\x{61}-\\x{63}\\x{2F}-\\x{2F}]/ /(?s:.)/ | T2? // a\n\
             T2: \"\" // b\n",
        );
        check(
            "root ::= ws \"(\" root* \")\" ws | (\"a\" root){0} | (\"b\" | \"c\" ws)\nws ::= \" \"*",
            "start: r0\n\
             r0: P0 r0* P1 | \"\" | P5 // root\n\
             T1: \" \"* // ws\n\
             P0: T1 \"(\"\n\
             P1: \")\" T1\n\
             P2: \"a\"\n\
             p3: P2 r0\n\
             P4: \"b\" | \"c\" T1\n\
             P5: P4\n",
        );
    }
}
