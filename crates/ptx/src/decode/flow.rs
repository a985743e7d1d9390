//! Register allocation: which registers can share a slot, and which may be read before they are written.
//!
//! Compilers emit PTX with a register per value, a thousand in a kernel. A warp's registers are packed by linear scan
//! (Poletto and Sarkar, "Linear scan register allocation", 1999) into as few slots as values are live at a time, so
//! that they fit into caches. A register that is written on every path to each of its reads needs no check; the others
//! are tracked.
//!
//! The analysis considers the paths of a single thread. It therefore also holds for divergent threads, because each
//! lane of a slot belongs to one thread.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::program::lanes::{File, Reg, UNTRACKED};
use crate::program::{Instruction, Op};

/// The registers of an instruction by number, including its guard, whether checked or not.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub(super) uses: Box<[u32]>,
    pub(super) defs: Box<[u32]>,
}

/// The allocation of a kernel's registers.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// The slot of each register, and its index among the tracked ones.
    pub(super) regs: Vec<Reg>,
    /// Tracked registers.
    pub(super) tracked: Vec<u32>,
    /// Slots of each file: 32 bits, 64 bits, predicates.
    pub(super) sizes: [usize; 3],
}

/// A set of registers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Set(Vec<u64>);

impl Set {
    fn new(n: usize, full: bool) -> Self {
        Self(vec![if full { u64::MAX } else { 0 }; n.div_ceil(64)])
    }

    fn has(&self, at: u32) -> bool {
        self.0[at as usize / 64] >> (at % 64) & 1 == 1
    }

    fn insert(&mut self, at: u32) {
        self.0[at as usize / 64] |= 1 << (at % 64);
    }

    fn remove(&mut self, at: u32) {
        self.0[at as usize / 64] &= !(1 << (at % 64));
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().enumerate().flat_map(|(i, &word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i as u32 * 64 + bit)
        })
    }
}

/// A basic block.
struct Block {
    start: usize,
    end: usize,
    next: Vec<usize>,
}

fn blocks(code: &[Instruction]) -> Vec<Block> {
    let mut starts = vec![false; code.len() + 1];
    starts[0] = true;
    let targets = |at: usize| match &code[at].op {
        Op::Branch(to) => vec![*to],
        Op::BranchTable(_, places) => places.to_vec(),
        _ => Vec::new(),
    };
    let ends = |at: usize| {
        matches!(code[at].op, Op::Branch(_) | Op::BranchTable(..) | Op::Exit | Op::Trap(_))
    };
    for at in 0..code.len() {
        if ends(at) {
            starts[at + 1] = true;
            targets(at).into_iter().for_each(|to| starts[to] = true);
        }
    }
    let mut number = vec![0; code.len() + 1];
    let mut blocks: Vec<Block> = Vec::new();
    for at in 0..code.len() {
        if starts[at] {
            blocks.push(Block { start: at, end: at, next: Vec::new() });
        }
        number[at] = blocks.len() - 1;
        blocks.last_mut().expect("the first instruction starts one").end = at + 1;
    }
    for block in &mut blocks {
        let last = block.end - 1;
        block.next = targets(last).into_iter().map(|to| number[to]).collect();
        let goes_on = !ends(last) || code[last].guard.is_some();
        if goes_on && block.end < code.len() {
            block.next.push(number[block.end]);
        }
    }
    blocks
}

/// Adds the registers that an instruction defines to `known`.
fn define(known: &mut Set, instruction: &Instruction, flow: &Flow) {
    let guarded = instruction.guard.is_some();
    if instruction.moves {
        let has_value = instruction.reads.first().is_none_or(|&from| known.has(from));
        match (has_value, guarded) {
            (true, false) => known.insert(instruction.writes[0]),
            (false, _) => known.remove(instruction.writes[0]),
            (true, true) => {}
        }
        return;
    }
    for &def in &flow.defs {
        // Whether a shuffle returns a value is known only at run time.
        match (instruction.writes.contains(&def), guarded) {
            (true, false) => known.insert(def),
            (true, true) => {}
            (false, _) => known.remove(def),
        }
    }
}

/// The registers that may be read before they are written.
fn tracked(code: &[Instruction], flow: &[Flow], blocks: &[Block], known: &[Set]) -> Set {
    let n = known[0].0.len() * 64;
    let mut found = Set::new(n, false);
    // Source and result of each move or shuffle whose source may be undefined.
    let mut passes = Vec::new();
    for (block, known) in blocks.iter().zip(known) {
        let mut known = known.clone();
        for at in block.start..block.end {
            let instruction = &code[at];
            let guard = instruction.guard.iter().map(|g| &g.predicate.id);
            let reads = if instruction.moves { &[][..] } else { &instruction.reads };
            for &read in reads.iter().chain(guard) {
                if !known.has(read) {
                    found.insert(read);
                }
            }
            let passed = flow[at].uses.iter().filter(|u| !reads.contains(u) && !known.has(**u));
            for &from in passed {
                passes.extend(flow[at].defs.iter().map(|&to| (from, to)));
            }
            define(&mut known, instruction, &flow[at]);
        }
    }
    loop {
        let before = found.clone();
        for &(from, to) in &passes {
            if found.has(to) {
                found.insert(from);
            }
        }
        if found == before {
            return found;
        }
    }
}

/// The registers that are defined at the start of each block.
fn known(code: &[Instruction], flow: &[Flow], blocks: &[Block], fixed: &Set) -> Vec<Set> {
    let n = fixed.0.len() * 64;
    let mut known = vec![Set::new(n, true); blocks.len()];
    known[0] = fixed.clone();
    let mut changed = true;
    while changed {
        changed = false;
        for (i, block) in blocks.iter().enumerate() {
            let mut out = known[i].clone();
            (block.start..block.end).for_each(|at| define(&mut out, &code[at], &flow[at]));
            for &next in &block.next {
                for (word, out) in known[next].0.iter_mut().zip(&out.0) {
                    let met = *word & out;
                    changed |= met != *word;
                    *word = met;
                }
            }
        }
    }
    known
}

/// The registers that are live at the start of each block.
fn alive(code: &[Instruction], flow: &[Flow], blocks: &[Block], n: usize) -> Vec<Set> {
    let mut alive = vec![Set::new(n, false); blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for (i, block) in blocks.iter().enumerate().rev() {
            let mut set = leaving(&alive, block, n);
            for at in (block.start..block.end).rev() {
                if code[at].guard.is_none() {
                    flow[at].defs.iter().for_each(|&def| set.remove(def));
                }
                flow[at].uses.iter().for_each(|&used| set.insert(used));
            }
            changed |= set != alive[i];
            alive[i] = set;
        }
    }
    alive
}

/// The registers that are live after a block.
fn leaving(alive: &[Set], block: &Block, n: usize) -> Set {
    let mut set = Set::new(n, false);
    for &next in &block.next {
        set.0.iter_mut().zip(&alive[next].0).for_each(|(word, more)| *word |= more);
    }
    set
}

/// Assigns slots to all registers. Those of `fixed` are initialized before the kernel starts and keep their slots.
pub(super) fn layout(
    code: &[Instruction],
    flow: &[Flow],
    regs: &[Reg],
    fixed: impl Iterator<Item = Reg>,
) -> Layout {
    let n = regs.len();
    let mut fixed_set = Set::new(n, false);
    fixed.for_each(|reg| fixed_set.insert(reg.id));
    let blocks = blocks(code);
    let tracked = tracked(code, flow, &blocks, &known(code, flow, &blocks, &fixed_set));
    let spans = spans(code, flow, &blocks, n);
    let mut layout = Layout { regs: regs.to_vec(), ..Layout::default() };
    for reg in &mut layout.regs {
        let id = reg.id;
        reg.id = UNTRACKED;
        if tracked.has(id) {
            reg.id = layout.tracked.len() as u32;
            layout.tracked.push(id);
        }
        if tracked.has(id) || fixed_set.has(id) {
            let size = &mut layout.sizes[file(reg.file)];
            reg.idx = *size as u32;
            *size += 1;
        }
    }
    let moved_from: Vec<Option<u32>> = {
        let mut from = vec![None; n];
        for instruction in code.iter().filter(|i| i.moves) {
            if let Some(&source) = instruction.reads.first() {
                from[instruction.writes[0] as usize] = Some(source);
            }
        }
        from
    };
    let mut order: Vec<u32> = (0..n as u32)
        .filter(|&id| !tracked.has(id) && !fixed_set.has(id) && spans[id as usize].is_some())
        .collect();
    let span = |id: u32| spans[id as usize].unwrap_or_default();
    order.sort_by_key(|&id| span(id));
    let mut free: [BinaryHeap<Reverse<u32>>; 3] = Default::default();
    let mut used: BinaryHeap<Reverse<(usize, u32)>> = BinaryHeap::new();
    for id in order {
        while let Some(&Reverse((end, gone))) = used.peek()
            && end < span(id).0
        {
            used.pop();
            let gone = layout.regs[gone as usize];
            free[file(gone.file)].push(Reverse(gone.idx));
        }
        let of_file = file(layout.regs[id as usize].file);
        // A move to its own slot is a no-op.
        let wanted = moved_from[id as usize].map(|from| layout.regs[from as usize].idx);
        let free = &mut free[of_file];
        let idx = match wanted.filter(|w| free.iter().any(|f| f.0 == *w)) {
            Some(wanted) => {
                free.retain(|f| f.0 != wanted);
                wanted
            }
            None => free.pop().map_or_else(
                || {
                    layout.sizes[of_file] += 1;
                    layout.sizes[of_file] as u32 - 1
                },
                |idx| idx.0,
            ),
        };
        layout.regs[id as usize].idx = idx;
        used.push(Reverse((span(id).1, id)));
    }
    layout
}

fn file(file: File) -> usize {
    match file {
        File::W32 => 0,
        File::W64 => 1,
        File::Predicate => 2,
    }
}

/// The live range of each register; instruction `i` reads at `2 i` and writes at `2 i + 1`.
fn spans(
    code: &[Instruction],
    flow: &[Flow],
    blocks: &[Block],
    n: usize,
) -> Vec<Option<(usize, usize)>> {
    let alive = alive(code, flow, blocks, n);
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; n];
    let mut cover = |id: u32, at: usize| {
        let span = &mut spans[id as usize];
        let (start, end) = span.unwrap_or((at, at));
        *span = Some((start.min(at), end.max(at)));
    };
    for (block, entering) in blocks.iter().zip(&alive) {
        entering.iter().for_each(|id| cover(id, 2 * block.start));
        leaving(&alive, block, n).iter().for_each(|id| cover(id, 2 * block.end - 1));
    }
    for (at, Flow { uses, defs }) in flow.iter().enumerate() {
        // An instruction with several results may write one of them before it has read all operands.
        let last = if defs.len() > 1 { 2 * at + 1 } else { 2 * at };
        uses.iter().for_each(|&id| cover(id, last));
        defs.iter().for_each(|&id| cover(id, 2 * at + 1));
    }
    spans
}
