//! Machine code of NVIDIA GPUs (SASS) as nvdisasm prints it: the tensor instructions of each kernel, and its main loop.
//!
//! A loop is a natural one: all code from which a branch back to its first instruction is reached without passing this
//! instruction, which every way into the loop passes. So what lies behind the end of a kernel, as slow paths do, is where it
//! runs, and a branch back from there is no loop. An instruction belongs to the innermost loop around it. The main loop is the
//! one to which the most tensor instructions belong, among loops with as many the one with the most reads of global memory,
//! then that with the most instructions, then the first. Its length counts loops inside it once, such as waits for a barrier.
//!
//! Calls are passed over: what is called (slow paths of divisions) is in no loop.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use anyhow::{Context, Result, ensure};

/// The code of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) n_tensor: usize,
    pub(super) main_loop: Option<Loop>,
}

/// A loop: its instructions, and those of them that are products on tensor cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Loop {
    pub(super) len: usize,
    pub(super) n_tensor: usize,
}

/// The kernels of what `nvdisasm --print-code` prints of a cubin.
pub(super) fn kernels(text: &str) -> Result<BTreeMap<String, Code>> {
    let mut found = BTreeMap::new();
    let mut open: Option<(&str, Listing<'_>)> = None;
    for line in text.lines() {
        let line = line.trim();
        let label = line.strip_suffix(':').filter(|label| !label.contains(' '));
        if let Some(name) = label.and_then(|label| label.strip_prefix(".text.")) {
            if let Some((name, listing)) = open.replace((name, Listing::default())) {
                found.insert(name.to_owned(), listing.code().context(name.to_owned())?);
            }
        } else if let Some((_, listing)) = &mut open {
            if let Some(label) = label {
                listing.labels.insert(label, listing.instructions.len());
            } else if let Some(instruction) = Instruction::parse(line) {
                listing.instructions.push(instruction);
            }
        }
    }
    if let Some((name, listing)) = open {
        found.insert(name.to_owned(), listing.code().context(name.to_owned())?);
    }
    Ok(found)
}

/// An instruction as far as it matters here.
#[derive(Debug)]
struct Instruction<'a> {
    kind: Kind,
    /// The labels that it may continue at.
    targets: Vec<&'a str>,
    /// Whether it may continue at the instruction after it.
    falls_through: bool,
}

impl<'a> Instruction<'a> {
    /// An instruction of a line such as `/*0070*/  @!P0 BRA P1, \`(.L_x_3) ;`.
    fn parse(line: &'a str) -> Option<Self> {
        let (_, text) = line.strip_prefix("/*")?.split_once("*/")?;
        let text = text.trim_start();
        let (is_predicated, text) = match text.strip_prefix('@') {
            Some(text) => (true, text.split_once(' ')?.1.trim_start()),
            None => (false, text),
        };
        let (full_name, operands) = text.split_once([' ', ';']).unwrap_or((text, ""));
        let name = full_name.split('.').next().unwrap_or_default();
        let operands = operands.trim_start();
        let targets = match name {
            "CALL" | "RET" => Vec::new(),
            _ => labels(operands),
        };
        let always = match name {
            // `BRA.U UP0, label` and `BRA.DIV UR4, label` branch where an operand says so.
            "BRA" | "JMP" => operands.starts_with('`'),
            "EXIT" | "RET" | "BRX" | "JMX" | "KILL" => true,
            _ => false,
        };
        Some(Self { kind: Kind::of(name), targets, falls_through: is_predicated || !always })
    }
}

/// What an instruction does, as far as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A product on tensor cores, from Ampere's to Blackwell's.
    Tensor,
    /// A read of global memory.
    Read,
    Other,
}

impl Kind {
    /// That of an instruction by its name.
    fn of(name: &str) -> Self {
        match name {
            "HMMA" | "IMMA" | "BMMA" | "DMMA" | "QMMA" | "OMMA" | "HGMMA" | "IGMMA" | "QGMMA"
            | "BGMMA" => Self::Tensor,
            _ if name.starts_with("UTC") && name.ends_with("MMA") => Self::Tensor,
            "LDG" | "LD" | "LDGSTS" | "UBLKCP" | "UTMALDG" => Self::Read,
            _ => Self::Other,
        }
    }
}

/// The labels of operands: `` `(.L_x_3) ``, or `(*"BRANCH_TARGETS .L_x_1,.L_x_2"*)` of an indirect branch.
fn labels(operands: &str) -> Vec<&str> {
    if let Some((_, list)) = operands.split_once("BRANCH_TARGETS ") {
        let list = list.split('"').next().unwrap_or_default();
        return list.split(',').map(str::trim).collect();
    }
    let named = operands.split("`(").skip(1);
    named.filter_map(|rest| rest.split(')').next()).collect()
}

/// The instructions of a kernel, and what its labels stand before.
#[derive(Debug, Default)]
struct Listing<'a> {
    instructions: Vec<Instruction<'a>>,
    labels: HashMap<&'a str, usize>,
}

impl Listing<'_> {
    fn code(&self) -> Result<Code> {
        let n_tensor = self.n_of(0..self.instructions.len(), Kind::Tensor);
        Ok(Code { n_tensor, main_loop: self.main_loop()? })
    }

    fn n_of(&self, range: Range<usize>, kind: Kind) -> usize {
        self.instructions[range].iter().filter(|instruction| instruction.kind == kind).count()
    }

    fn main_loop(&self) -> Result<Option<Loop>> {
        let blocks = self.blocks()?;
        let loops = loops(&blocks.successors);
        let len_of = |body: &BTreeSet<usize>| -> usize {
            body.iter().map(|&block| blocks.range(block).len()).sum()
        };
        // The innermost loop of a block is the shortest: two loops are apart, or one is inside the other.
        let mut by_len: Vec<usize> = (0..loops.len()).collect();
        by_len.sort_by_key(|&at| len_of(&loops[at]));
        let mut own = vec![[0; 3]; loops.len()];
        for block in 0..blocks.successors.len() {
            if let Some(&at) = by_len.iter().find(|&&at| loops[at].contains(&block)) {
                let range = blocks.range(block);
                own[at][0] += self.n_of(range.clone(), Kind::Tensor);
                own[at][1] += self.n_of(range.clone(), Kind::Read);
                own[at][2] += range.len();
            }
        }
        let main = (0..loops.len()).rev().max_by_key(|&at| own[at]);
        Ok(main.map(|at| {
            let tensor = |&block: &usize| self.n_of(blocks.range(block), Kind::Tensor);
            Loop { len: len_of(&loops[at]), n_tensor: loops[at].iter().map(tensor).sum() }
        }))
    }

    /// Stretches of instructions that run from their first to their last one.
    fn blocks(&self) -> Result<Blocks> {
        let n = self.instructions.len();
        let mut starts = BTreeSet::from([0]);
        let mut targets = Vec::new();
        for (at, instruction) in self.instructions.iter().enumerate() {
            let found = instruction.targets.iter().map(|label| {
                let target = self.labels.get(label).copied();
                target.with_context(|| format!("no label `{label}`"))
            });
            let found = found.collect::<Result<Vec<usize>>>()?;
            if !found.is_empty() || !instruction.falls_through {
                starts.insert(at + 1);
            }
            starts.extend(found.iter().copied());
            targets.push(found);
        }
        starts.retain(|&start| start < n);
        let starts: Vec<usize> = starts.into_iter().collect();
        let block_of = |at: usize| starts.partition_point(|&start| start <= at) - 1;
        let mut successors = Vec::new();
        for (block, _) in starts.iter().enumerate() {
            let end = starts.get(block + 1).copied().unwrap_or(n);
            ensure!(end > 0, "no instructions");
            let mut next: Vec<usize> =
                targets[end - 1].iter().filter(|&&at| at < n).map(|&at| block_of(at)).collect();
            if self.instructions[end - 1].falls_through && end < n {
                next.push(block + 1);
            }
            successors.push(next);
        }
        Ok(Blocks { starts, n_instructions: n, successors })
    }
}

/// The blocks of a kernel in order.
struct Blocks {
    starts: Vec<usize>,
    n_instructions: usize,
    successors: Vec<Vec<usize>>,
}

impl Blocks {
    fn range(&self, block: usize) -> Range<usize> {
        self.starts[block]..self.starts.get(block + 1).copied().unwrap_or(self.n_instructions)
    }
}

/// The natural loops of a graph that is entered at node 0, by their first node: the nodes of each.
fn loops(successors: &[Vec<usize>]) -> Vec<BTreeSet<usize>> {
    let order = reverse_postorder(successors);
    let dominators = Dominators::of(successors, &order);
    let mut predecessors = vec![Vec::new(); successors.len()];
    for &node in &order {
        successors[node].iter().for_each(|&next| predecessors[next].push(node));
    }
    let mut loops: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for &node in &order {
        for &first in successors[node].iter().filter(|&&next| dominators.dominates(next, node)) {
            let body = loops.entry(first).or_insert_with(|| BTreeSet::from([first]));
            let mut open = vec![node];
            while let Some(node) = open.pop() {
                if body.insert(node) {
                    open.extend(&predecessors[node]);
                }
            }
        }
    }
    loops.into_values().collect()
}

/// The nodes that node 0 leads to, each after a path to it, but for branches back.
fn reverse_postorder(successors: &[Vec<usize>]) -> Vec<usize> {
    let mut order = Vec::new();
    let mut seen = vec![false; successors.len()];
    let mut open = Vec::new();
    if let Some(first) = seen.first_mut() {
        *first = true;
        open.push((0, 0));
    }
    while let Some((node, n_done)) = open.pop() {
        match successors[node].get(n_done) {
            None => order.push(node),
            Some(&next) => {
                open.push((node, n_done + 1));
                if !std::mem::replace(&mut seen[next], true) {
                    open.push((next, 0));
                }
            }
        }
    }
    order.reverse();
    order
}

/// The nodes that every path to a node passes (Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm").
struct Dominators {
    /// The place of a node in the order.
    place: Vec<usize>,
    /// The place of the nearest dominator, by place.
    nearest: Vec<usize>,
}

impl Dominators {
    const NONE: usize = usize::MAX;

    fn of(successors: &[Vec<usize>], order: &[usize]) -> Self {
        let mut place = vec![Self::NONE; successors.len()];
        order.iter().enumerate().for_each(|(at, &node)| place[node] = at);
        let mut predecessors = vec![Vec::new(); order.len()];
        for (at, &node) in order.iter().enumerate() {
            successors[node].iter().for_each(|&next| predecessors[place[next]].push(at));
        }
        let mut nearest = vec![Self::NONE; order.len()];
        if let Some(first) = nearest.first_mut() {
            *first = 0;
        }
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for at in 1..order.len() {
                let known = predecessors[at].iter().copied().filter(|&p| nearest[p] != Self::NONE);
                let found = known.reduce(|a, b| Self::common(&nearest, a, b));
                let found = found.unwrap_or(Self::NONE);
                has_changed |= found != nearest[at];
                nearest[at] = found;
            }
        }
        Self { place, nearest }
    }

    /// The nearest node that dominates both.
    fn common(nearest: &[usize], mut a: usize, mut b: usize) -> usize {
        while a != b {
            if a > b {
                a = nearest[a];
            } else {
                b = nearest[b];
            }
        }
        a
    }

    fn dominates(&self, by: usize, node: usize) -> bool {
        let (by, mut at) = (self.place[by], self.place[node]);
        while at > by {
            at = self.nearest[at];
        }
        at == by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel of these lines: labels, or instructions without their addresses.
    fn code(lines: &str) -> Code {
        let mut text = "\t.section\t.text.k,\"ax\",@progbits\nk:\n.text.k:\n".to_owned();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            match line.strip_suffix(':') {
                Some(_) => text += &format!("{line}\n"),
                None => text += &format!("        /*0000*/                   {line} ;\n"),
            }
        }
        let found = kernels(&text).unwrap();
        assert_eq!(found.len(), 1);
        found["k"]
    }

    #[test]
    fn the_main_loop_is_that_of_most_tensor_instructions() {
        let two_loops = "
            MOV R1, c[0x0][0x28]
            .L_x_0:
            LDG.E R2, desc[UR4][R2.64]
            LDG.E R3, desc[UR4][R2.64]
            @P0 BRA `(.L_x_0)
            .L_x_1:
            HMMA.16816.F32.BF16 R4, R8, R10, R4
            HFMA2.MMA R8, -RZ, RZ, 0, 0
            IMMA.16832.S8.S8 R4, R8, R10, R4
            @!P1 BRA P2, `(.L_x_1)
            HMMA.16816.F32 R4, R8, R10, R4
            EXIT";
        let expected = Loop { len: 4, n_tensor: 2 };
        assert_eq!(code(two_loops), Code { n_tensor: 3, main_loop: Some(expected) });
        // Without tensor instructions, that of most reads.
        let expected = Loop { len: 3, n_tensor: 0 };
        let without = two_loops.replace("HMMA", "FFMA").replace("IMMA", "IMAD");
        assert_eq!(code(&without), Code { n_tensor: 0, main_loop: Some(expected) });
        assert_eq!(code("FADD R1, R2, R3\nEXIT"), Code { n_tensor: 0, main_loop: None });
    }

    #[test]
    fn a_loop_has_what_waits_in_it_and_its_slow_path() {
        let nested = "
            .L_x_0:
            IADD3 R1, R1, 0x1, RZ
            .L_x_1:
            SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R3], R5
            @!P0 BRA `(.L_x_1)
            HGMMA.64x256x16.F32.BF16 R24, R4, gdesc[UR8], R24, gsb0
            BRA.DIV UR4, `(.L_x_3)
            .L_x_2:
            BRA.U UP0, `(.L_x_0)
            HGMMA.64x256x16.F32.BF16 R24, R4, gdesc[UR8], R24, gsb0
            EXIT
            .L_x_3:
            WARPSYNC.COLLECTIVE R9, `(.L_x_4)
            SHFL.IDX PT, R1, R2, R3, R4
            .L_x_4:
            BRA `(.L_x_2)
            .L_x_5:
            BRA `(.L_x_5)
            NOP";
        // The branch back from behind the end makes no loop, and the last one is never reached.
        let expected = Loop { len: 9, n_tensor: 1 };
        assert_eq!(code(nested), Code { n_tensor: 2, main_loop: Some(expected) });
    }

    #[test]
    fn branches_are_followed_to_where_they_may_lead() {
        // An indirect branch into one of two arms, a call, and the end of a loop by a predicate.
        let cases = "
            .L_x_0:
            BSSY.RECONVERGENT B0, `(.L_x_3)
            BRX R12 -0x7a50 (*\"BRANCH_TARGETS .L_x_1,.L_x_2\"*)
            .L_x_1:
            CALL.REL.NOINC `($__internal_0_$slowpath)
            BSYNC.RECONVERGENT B0
            .L_x_3:
            @P1 EXIT
            LDG.E R2, desc[UR4][R2.64]
            BRA `(.L_x_0)
            .L_x_2:
            BRA `(.L_x_3)
            $__internal_0_$slowpath:
            HMMA.16816.F32 R4, R8, R10, R4
            RET.REL.NODEC R2 `(k)";
        let expected = Loop { len: 8, n_tensor: 0 };
        assert_eq!(code(cases), Code { n_tensor: 1, main_loop: Some(expected) });
        // Two ways into a cycle: none of its instructions is passed by all, so it is no loop.
        let two_ways = "
            @P0 BRA `(.L_x_1)
            .L_x_0:
            FADD R1, R2, R3
            .L_x_1:
            @P1 BRA `(.L_x_0)
            EXIT";
        assert_eq!(code(two_ways).main_loop, None);
    }

    #[test]
    fn a_branch_to_nowhere_is_an_error() {
        let text = ".text.k:\n/*0000*/ BRA `(.L_x_9) ;\n";
        assert_eq!(kernels(text).unwrap_err().root_cause().to_string(), "no label `.L_x_9`");
    }
}
