//! Execution of a block: its warps take turns until all threads have exited.
//!
//! The threads of a warp may diverge. Threads at one instruction form a split. The split with the lowest instruction
//! index runs until it reaches another split, which it joins, so threads reconverge where compilers let paths meet.
//! Correctness does not depend on that: a collective waits until all lanes of its mask have arrived, together or apart,
//! and a long-running split yields, so that threads may wait for one another.

use super::state::{Context, Shape, Split, Wait, Warp, check_waited};
use crate::fault::{Fault, FaultKind, LaneFault};
use crate::program::collective::Collective;
use crate::program::lanes::{LANES, UNTRACKED, lanes_of};
use crate::program::{Instruction, Op};

/// Instructions that a split runs before it yields.
const SLICE: u64 = 1 << 14;

/// How a warp's turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// All threads have exited or wait.
    Over,
    /// The slice is used up.
    Slice,
}

/// The control flow after an instruction.
enum Next {
    Step,
    /// The whole split continues at another instruction.
    Jump(usize),
    /// The split was suspended or has ended.
    Away,
}

impl Context<'_> {
    /// Runs block number `block` of the grid.
    pub(super) fn run(&mut self, warps: &mut [Warp], block: usize) -> Result<(), Box<Fault>> {
        self.block = block;
        let granule = self.checks.shared_races.then_some(self.program.granules[0]);
        self.shared.start(self.shape.shared_bytes, granule, self.program.has_groups);
        self.clocks.start(block, warps.len());
        self.barriers.start();
        self.phases.start();
        for warp in warps.iter_mut() {
            warp.start(self.program, &self.shape, block, self.is_dependent);
        }
        loop {
            let mut ran = false;
            for i in 0..warps.len() {
                let before = self.executed[0];
                if let Err(fault) = self.turn(&mut warps[i]) {
                    return Err(self.report(warps[i].idx, self.at, fault));
                }
                ran |= self.executed[0] != before;
                let released = self.release_barriers(warps);
                ran |= released.map_err(|(warp, at, fault)| self.report(warp, at, fault))?;
                ran |= self.release_phases(warps);
            }
            if warps.iter().all(|w| w.splits.is_empty()) {
                let finished = self.phases.finish();
                finished.map_err(|(warp, at, fault)| self.report(warp, at, fault))?;
                let same = self.check_groups(warps);
                return same.map_err(|(warp, fault)| self.report(warp, self.at, fault));
            }
            if !ran {
                let (warp, at, fault) = self.stuck(warps);
                return Err(self.report(warp, at, fault));
            }
        }
    }

    /// Adds the location to a fault.
    fn report(&self, warp: usize, at: usize, fault: LaneFault) -> Box<Fault> {
        Box::new(Fault {
            kind: fault.kind,
            message: fault.message,
            kernel: self.program.name.clone(),
            block: Shape::split(self.block, self.shape.grid),
            thread: Shape::split(warp * LANES + fault.lane, self.shape.block),
            line: self.program.code[at].line,
            text: String::new(),
        })
    }

    /// Runs a warp until its threads wait or have exited, or its slice is used up.
    fn turn(&mut self, warp: &mut Warp) -> Result<(), LaneFault> {
        loop {
            while let Some(split) = warp.take() {
                warp.turns += 1;
                let turn = self.run_split(warp, split)?;
                warp.yields = turn == Turn::Slice;
                if self.executed[0] > self.checks.max_instructions {
                    let message =
                        format!("more than {} instructions", self.checks.max_instructions);
                    let lane = split.mask.trailing_zeros() as usize;
                    return Err(LaneFault::new(FaultKind::Limit, lane, message));
                }
                if turn == Turn::Slice || self.barriers.is_ready {
                    return Ok(());
                }
            }
            if !self.complete_apart(warp)? {
                return Ok(());
            }
        }
    }

    fn run_split(&mut self, warp: &mut Warp, split: Split) -> Result<Turn, LaneFault> {
        let Split { mut at, mut mask, .. } = split;
        let end = self.executed[0] + SLICE;
        let program = self.program;
        loop {
            if !warp.splits.is_empty() {
                mask |= warp.join(at);
                let mut others = warp.splits.iter().filter(|s| s.wait == Wait::Nothing);
                if !warp.yields && others.any(|s| s.at < at) {
                    warp.put(at, mask, Wait::Nothing);
                    return Ok(Turn::Over);
                }
            }
            if self.executed[0] >= end {
                warp.put(at, mask, Wait::Nothing);
                return Ok(Turn::Slice);
            }
            let instruction = &program.code[at];
            self.at = at;
            let mut active = mask;
            if let Some(guard) = instruction.guard {
                if guard.predicate.id != UNTRACKED {
                    self.check_defined(warp, guard.predicate.id, mask)?;
                }
                let holds = warp.registers.predicate(guard.predicate);
                active &= if guard.negated { !holds } else { holds };
            }
            self.executed[0] += 1;
            if active == 0 {
                at += 1;
                continue;
            }
            self.executed[1] +=
                if active == u32::MAX { 32 } else { u64::from(active.count_ones()) };
            if let Some(counter) = &mut self.counter {
                counter.instruction(instruction.work, active);
            }
            if instruction.is_tracked {
                self.track(warp, instruction, active)?;
            }
            if let Op::Lanes(f) = &instruction.op {
                f(&mut warp.registers, active);
                at += 1;
                continue;
            }
            match self.special(warp, &instruction.op, at, mask, active)? {
                Next::Step => at += 1,
                Next::Jump(to) => at = to,
                Next::Away => return Ok(Turn::Over),
            }
        }
    }

    /// Checks that registers are defined, and marks the results as defined.
    #[inline(never)]
    fn track(
        &self,
        warp: &mut Warp,
        instruction: &Instruction,
        active: u32,
    ) -> Result<(), LaneFault> {
        if instruction.moves {
            let defined = &mut warp.registers.defined;
            let from = instruction.reads.first().map_or(u32::MAX, |&r| defined[r as usize]);
            for &write in &instruction.writes {
                let to = &mut defined[write as usize];
                *to = *to & !active | from & active;
            }
            return Ok(());
        }
        for &read in &instruction.reads {
            self.check_defined(warp, read, active)?;
        }
        for &write in &instruction.writes {
            warp.registers.defined[write as usize] |= active;
        }
        Ok(())
    }

    fn check_defined(&self, warp: &Warp, register: u32, active: u32) -> Result<(), LaneFault> {
        let missing = active & !warp.registers.defined[register as usize];
        if missing == 0 || !self.checks.uninitialised {
            return Ok(());
        }
        let name = &self.program.names[register as usize];
        let lane = missing.trailing_zeros() as usize;
        let message = format!("the register `{name}` is read before it has a value");
        Err(LaneFault::new(FaultKind::UndefinedRegister, lane, message))
    }

    /// Runs an instruction that is not a function of registers alone.
    fn special(
        &mut self,
        warp: &mut Warp,
        op: &Op,
        at: usize,
        mask: u32,
        active: u32,
    ) -> Result<Next, LaneFault> {
        match op {
            Op::Lanes(f) => f(&mut warp.registers, active),
            Op::Access(access) => self.access(warp, access, active)?,
            Op::Atomic(atomic) => self.atomic(warp, atomic, active)?,
            Op::CopyAsync(copy) => self.copy_async(warp, copy, active)?,
            Op::CommitCopies => lanes_of(active).for_each(|lane| warp.groups[lane] += 1),
            Op::WaitCopies(left) => self.wait_copies(warp, *left, active)?,
            Op::ActiveMask(to) => warp.registers.set_word(*to, active, &[active; LANES]),
            Op::Fence(reaches_device) => self.fenced[self.block] |= reaches_device,
            Op::CopyBulk(copy) => self.copy_bulk(warp, copy, active)?,
            Op::AsyncFence { stores } => {
                self.phases.publish(warp.idx);
                if *stores {
                    let own = warp.idx as u8 + 1;
                    let unfenced = self.shared.unfenced.iter_mut().filter(|warp| **warp == own);
                    unfenced.for_each(|warp| *warp = 0);
                }
            }
            Op::Mbarrier(mbarrier) => {
                let done = self.mbarrier(warp, mbarrier, at, active)?;
                if done != mask {
                    warp.put(at + 1, mask & !active | done, Wait::Nothing);
                    return Ok(Next::Away);
                }
            }
            Op::Wgmma(wgmma) => {
                if !self.is_whole(warp, at, mask, active) {
                    return Ok(Next::Away);
                }
                self.wgmma(warp, wgmma, at)?;
            }
            Op::Nothing => {}
            Op::WaitForLaunch => warp.early &= !active,
            Op::Matrix(matrix) => {
                if !self.is_whole(warp, at, mask, active) {
                    return Ok(Next::Away);
                }
                self.matrix(warp, matrix)?;
            }
            Op::Branch(to) => return Ok(diverge(warp, mask, &[(*to, active)], at)),
            Op::BranchTable(index, places) => {
                let mut targets = Vec::new();
                for lane in lanes_of(active) {
                    let Some(&to) = places.get(warp.registers.lane(*index, lane) as usize) else {
                        let message = "an index behind the table of targets";
                        return Err(LaneFault::new(FaultKind::Operand, lane, message));
                    };
                    targets.push((to, 1 << lane));
                }
                return Ok(diverge(warp, mask, &targets, at));
            }
            Op::Exit => {
                check_waited(warp.early & active, "the thread ends")?;
                self.wait_copies(warp, None, active)?;
                self.check_products(warp)?;
                warp.alive &= !active;
                self.barriers.exited(active.count_ones());
                warp.wake();
                warp.put(at + 1, mask & !active, Wait::Nothing);
                return Ok(Next::Away);
            }
            Op::Trap(message) => {
                let lane = active.trailing_zeros() as usize;
                return Err(LaneFault::new(FaultKind::Trap, lane, *message));
            }
            Op::Barrier(barrier) => {
                if barrier.aligned && !self.is_whole(warp, at, mask, active) {
                    return Ok(Next::Away);
                }
                warp.put(at + 1, mask & !active, Wait::Nothing);
                self.arrive(warp, barrier, at, active)?;
                return Ok(Next::Away);
            }
            Op::Collective(collective) => {
                let done = self.collective(warp, collective, at, active)?;
                if done == mask {
                    return Ok(Next::Step);
                }
                warp.put(at + 1, mask & !active | done, Wait::Nothing);
                return Ok(Next::Away);
            }
        }
        Ok(Next::Step)
    }

    /// Whether all lanes of the warp are here. If not, those that are wait for the others.
    fn is_whole(&self, warp: &mut Warp, at: usize, mask: u32, active: u32) -> bool {
        if active == warp.alive {
            return true;
        }
        warp.put(at + 1, mask & !active, Wait::Nothing);
        warp.put(at, active, Wait::Lanes);
        false
    }

    /// The fault to report when no warp can continue: lanes that wait for others of their warp, or threads that wait at
    /// a barrier.
    fn stuck(&self, warps: &[Warp]) -> (usize, usize, LaneFault) {
        for warp in warps {
            let Some(split) = warp.splits.iter().find(|s| s.wait == Wait::Lanes) else { continue };
            let elsewhere = warp.splits.iter().find(|s| s.at != split.at);
            let elsewhere = elsewhere.map_or_else(
                || "have exited".to_owned(),
                |s| format!("are at line {}", self.program.code[s.at].line),
            );
            let what = match &self.program.code[split.at].op {
                Op::Collective(Collective { mask, .. }) => {
                    let lane = split.mask.trailing_zeros() as usize;
                    let named = warp.registers.lane(*mask, lane) as u32;
                    format!("a collective of lanes {named:#010x}")
                }
                _ => "an instruction of the whole warp".to_owned(),
            };
            let message =
                format!("only lanes {:#010x} arrive at {what}; others {elsewhere}", split.mask);
            let lane = split.mask.trailing_zeros() as usize;
            return (warp.idx, split.at, LaneFault::new(FaultKind::Divergence, lane, message));
        }
        let phases = warps.iter().flat_map(|w| w.splits.iter().map(move |s| (w, s)));
        for (warp, split) in phases.filter(|(_, s)| s.wait == Wait::Phase) {
            if let Op::Mbarrier(mbarrier) = &self.program.code[split.at].op {
                let lane = split.mask.trailing_zeros() as usize;
                let message = self.missing(warp, mbarrier, lane);
                return (warp.idx, split.at, LaneFault::new(FaultKind::Divergence, lane, message));
            }
        }
        let waiting = warps.iter().find_map(|w| Some((w.idx, w.splits.first()?)));
        let (warp, split) = waiting.expect("a thread that has not exited waits");
        let arrived: u32 = warps.iter().flat_map(|w| &w.splits).map(|s| s.mask.count_ones()).sum();
        let message = format!(
            "a barrier that not all threads reach: {arrived} threads wait, {} have exited",
            self.shape.threads() as u32 - arrived
        );
        let lane = split.mask.trailing_zeros() as usize;
        (warp, split.at, LaneFault::new(FaultKind::Divergence, lane, message))
    }
}

/// Sends lanes to their targets, and the others to the next instruction.
fn diverge(warp: &mut Warp, mask: u32, targets: &[(usize, u32)], at: usize) -> Next {
    let active = targets.iter().fold(0, |all, &(_, lanes)| all | lanes);
    if active == mask && targets.iter().all(|t| t.0 == targets[0].0) {
        return Next::Jump(targets[0].0);
    }
    let others = [(at + 1, mask & !active)];
    for &(to, lanes) in targets.iter().chain(&others) {
        match warp.splits.iter_mut().find(|s| s.at == to && s.wait == Wait::Nothing) {
            Some(split) => split.mask |= lanes,
            None => warp.put(to, lanes, Wait::Nothing),
        }
    }
    Next::Away
}
