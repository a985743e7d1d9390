//! Execution of shuffles, votes, matches, reductions, and barriers of the block.

use super::barriers::BARRIERS;
use super::state::{Context, Wait, Warp};
use crate::fault::{FaultKind, LaneFault};
use crate::program::Op;
use crate::program::collective::{
    Barrier, BarrierKind, BarrierReduce, Collective, Kind, Shuffle, ShuffleRegs, Vote,
};
use crate::program::lanes::{LANES, Reg, Registers, lanes_of};

impl Context<'_> {
    /// Lanes arrive at a collective. Returns those whose masks are complete, which continue; the others wait.
    pub(super) fn collective(
        &mut self,
        warp: &mut Warp,
        collective: &Collective,
        at: usize,
        active: u32,
    ) -> Result<u32, LaneFault> {
        let masks = warp.registers.word(collective.mask);
        let first = masks[active.trailing_zeros() as usize];
        let differ = masks.iter().fold(0, |bits, mask| bits | mask ^ first);
        if differ == 0 && first & warp.alive == active && active & !first == 0 {
            self.execute(warp, &[(collective, active)]);
            return Ok(active);
        }
        let (mut rest, mut done, mut waits) = (active, 0, 0);
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            let mask = warp.registers.lane(collective.mask, lane) as u32;
            let group = lanes_of(rest)
                .filter(|&lane| warp.registers.lane(collective.mask, lane) as u32 == mask)
                .fold(0, |group, lane| group | 1 << lane);
            if group & !mask != 0 {
                let lane = (group & !mask).trailing_zeros() as usize;
                let message = format!("the mask {mask:#010x} does not name the lane itself");
                return Err(LaneFault::new(FaultKind::Divergence, lane, message));
            }
            if mask & warp.alive & !group == 0 {
                self.execute(warp, &[(collective, group)]);
                done |= group;
            } else {
                waits |= group;
            }
            rest &= !group;
        }
        warp.put(at, waits, Wait::Lanes);
        Ok(done)
    }

    /// Runs a collective that lanes at different instructions wait for, if no lane can continue otherwise.
    pub(super) fn complete_apart(&mut self, warp: &mut Warp) -> Result<bool, LaneFault> {
        let program = self.program;
        let of = |at: usize| match &program.code[at].op {
            Op::Collective(collective) => Some(collective),
            _ => None,
        };
        let waiting = warp.splits.iter().filter(|s| s.wait == Wait::Lanes);
        let firsts: Vec<_> = waiting.filter_map(|s| Some((of(s.at)?, s.mask))).collect();
        for (first, lanes) in firsts {
            let lane = lanes.trailing_zeros() as usize;
            let mask = warp.registers.lane(first.mask, lane) as u32;
            let mut parts = Vec::new();
            for split in warp.splits.iter().filter(|s| s.wait == Wait::Lanes) {
                let Some(other) = of(split.at).filter(|other| other.matches(first)) else {
                    continue;
                };
                let lanes = lanes_of(split.mask)
                    .filter(|&lane| warp.registers.lane(other.mask, lane) as u32 == mask)
                    .fold(0, |lanes, lane| lanes | 1 << lane);
                parts.push((other, lanes));
            }
            let all = parts.iter().fold(0, |all, part| all | part.1);
            if mask & warp.alive & !all != 0 {
                continue;
            }
            self.execute(warp, &parts);
            let splits = std::mem::take(&mut warp.splits);
            for split in splits {
                let goes = if split.wait == Wait::Lanes { split.mask & all } else { 0 };
                warp.put(split.at + 1, goes, Wait::Nothing);
                warp.put(split.at, split.mask & !goes, split.wait);
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Runs a collective of lanes that are at one instruction, or at several of the same kind.
    fn execute(&mut self, warp: &mut Warp, parts: &[(&Collective, u32)]) {
        if let [(Collective { kind: Kind::Shuffle(how, regs), .. }, u32::MAX)] = parts
            && warp.registers.defined(regs.from) == u32::MAX
        {
            return shuffle_whole(&mut warp.registers, *how, regs);
        }
        let all = parts.iter().fold(0, |all, part| all | part.1);
        let r = &mut warp.registers;
        // The value that each lane contributes.
        let mut values = [0; LANES];
        let mut known = 0;
        for (collective, lanes) in parts {
            let (from, flip) = match &collective.kind {
                Kind::Sync => continue,
                Kind::Shuffle(_, regs) => (regs.from, 0),
                Kind::Vote(_, regs) => (regs.predicate, u64::from(regs.negated)),
                Kind::MatchAny { value, .. }
                | Kind::MatchAll { value, .. }
                | Kind::Reduce { value, .. } => (*value, 0),
            };
            known |= r.defined(from) & lanes;
            for lane in lanes_of(*lanes) {
                values[lane] = r.lane(from, lane) ^ flip;
            }
        }
        for (collective, lanes) in parts {
            let written = |r: &mut Registers, reg: Reg, lane: usize, value: u64| {
                r.set_lane(reg, lane, value);
                r.define(reg, 1 << lane, true);
            };
            match &collective.kind {
                Kind::Sync => {}
                Kind::Shuffle(how, regs) => {
                    for lane in lanes_of(*lanes) {
                        let (by, clamp) = (r.lane(regs.by, lane), r.lane(regs.clamp, lane));
                        let (from, valid) = source(*how, lane, by as usize & 31, clamp as usize);
                        let is_known = known >> from & 1;
                        r.set_lane(regs.to, lane, values[from]);
                        r.define(regs.to, 1 << lane, is_known == 1);
                        if let Some(reg) = regs.valid {
                            written(r, reg, lane, u64::from(valid));
                        }
                    }
                }
                Kind::Vote(how, regs) => {
                    let ballot = lanes_of(all).fold(0, |b, lane| b | (values[lane] as u32) << lane);
                    let result = match how {
                        Vote::All => u32::from(ballot == all),
                        Vote::Any => u32::from(ballot != 0),
                        Vote::Uniform => u32::from(ballot == all || ballot == 0),
                        Vote::Ballot => ballot,
                    };
                    lanes_of(*lanes).for_each(|lane| written(r, regs.to, lane, u64::from(result)));
                }
                Kind::MatchAny { to, .. } => {
                    for lane in lanes_of(*lanes) {
                        let same = lanes_of(all).filter(|&other| values[other] == values[lane]);
                        let same = same.fold(0u32, |same, other| same | 1 << other);
                        written(r, *to, lane, u64::from(same));
                    }
                }
                Kind::MatchAll { to, same, .. } => {
                    let first = values[all.trailing_zeros() as usize];
                    let is_same = lanes_of(all).all(|lane| values[lane] == first);
                    for lane in lanes_of(*lanes) {
                        written(r, *to, lane, if is_same { u64::from(all) } else { 0 });
                        if let Some(reg) = same {
                            written(r, *reg, lane, u64::from(is_same));
                        }
                    }
                }
                Kind::Reduce { how, to, .. } => {
                    let words = lanes_of(all).map(|lane| values[lane] as u32);
                    let result = words.reduce(|x, y| how.combine(x, y)).unwrap_or(0);
                    lanes_of(*lanes).for_each(|lane| written(r, *to, lane, u64::from(result)));
                }
            }
        }
        if matches!(parts[0].0.kind, Kind::Sync) {
            self.clocks.warp_barrier(warp.idx);
        }
    }

    /// Threads of a warp arrive at a barrier.
    pub(super) fn arrive(
        &mut self,
        warp: &mut Warp,
        barrier: &Barrier,
        at: usize,
        active: u32,
    ) -> Result<(), LaneFault> {
        let lane = active.trailing_zeros() as usize;
        let fault = |message: String| Err(LaneFault::new(FaultKind::Operand, lane, message));
        let id = warp.registers.lane(barrier.id, lane) as usize;
        if lanes_of(active).any(|lane| warp.registers.lane(barrier.id, lane) as usize != id) {
            return fault("lanes of a warp name different barriers".to_owned());
        }
        let count = barrier.count.map(|count| warp.registers.lane(count, lane) as u32);
        let Some(state) = self.barriers.states.get_mut(id) else {
            return fault(format!("barrier {id}, where a block has {BARRIERS}"));
        };
        if let Some(count) = count
            && (count % 32 != 0
                || count == 0
                || count as usize > self.shape.threads().next_multiple_of(32))
        {
            return fault(format!(
                "a barrier of {count} threads, in a block of {}",
                self.shape.threads()
            ));
        }
        if state.arrived > 0 && state.count != count {
            return fault(format!(
                "barrier {id} of {count:?} threads, and of {:?} elsewhere",
                state.count
            ));
        }
        state.count = count;
        // With a thread count, warps count as full.
        let is_full = barrier.aligned && count.is_some();
        state.arrived += if is_full { LANES as u32 } else { active.count_ones() };
        self.clocks.arrive(warp.idx, &mut state.knows);
        let wait = match &barrier.kind {
            BarrierKind::Arrive => {
                warp.put(at + 1, active, Wait::Nothing);
                self.barriers.is_ready = true;
                return Ok(());
            }
            BarrierKind::Sync => Wait::Barrier(id),
            BarrierKind::Reduce { predicate, negated, .. } => {
                let holds = warp.registers.predicate(*predicate);
                let holds = if *negated { !holds } else { holds };
                state.held += (holds & active).count_ones();
                state.asked += active.count_ones();
                Wait::Barrier(id)
            }
        };
        warp.put(at, active, wait);
        self.barriers.is_ready = true;
        Ok(())
    }

    /// Releases the threads of complete barriers. Returns whether there were any, or a fault with its warp and
    /// instruction.
    pub(super) fn release_barriers(
        &mut self,
        warps: &mut [Warp],
    ) -> Result<bool, (usize, usize, LaneFault)> {
        if !std::mem::take(&mut self.barriers.is_ready) {
            return Ok(false);
        }
        let mut any = false;
        let exited = self.barriers.exited;
        for id in 0..BARRIERS {
            let state = &self.barriers.states[id];
            let all = self.shape.threads() as u32;
            let needed = state.count.unwrap_or(all - exited);
            if state.arrived == 0 || state.arrived < needed {
                continue;
            }
            if state.count.is_none() && exited > 0 && !self.checks.exited_threads_leave_barriers {
                let waiting = warps.iter().find_map(|w| {
                    let split = w.splits.iter().find(|s| s.wait == Wait::Barrier(id))?;
                    Some((w.idx, *split))
                });
                if let Some((warp, split)) = waiting {
                    let message = format!(
                        "a barrier that not all threads reach: {exited} of {all} have exited before it"
                    );
                    let lane = split.mask.trailing_zeros() as usize;
                    let fault = LaneFault::new(FaultKind::Divergence, lane, message);
                    return Err((warp, split.at, fault));
                }
            }
            let state = std::mem::take(&mut self.barriers.states[id]);
            any = true;
            for warp in warps.iter_mut() {
                let mut is_here = false;
                for split in warp.splits.iter_mut().filter(|s| s.wait == Wait::Barrier(id)) {
                    split.wait = Wait::Nothing;
                    is_here = true;
                    if let Op::Barrier(Barrier {
                        kind: BarrierKind::Reduce { how, to, .. }, ..
                    }) = &self.program.code[split.at].op
                    {
                        let result = match how {
                            BarrierReduce::Count => state.held,
                            BarrierReduce::All => u32::from(state.held == state.asked),
                            BarrierReduce::Any => u32::from(state.held > 0),
                        };
                        let r = &mut warp.registers;
                        lanes_of(split.mask).for_each(|l| r.set_lane(*to, l, u64::from(result)));
                    }
                    split.at += 1;
                }
                if is_here {
                    self.clocks.leave(warp.idx, &state.knows);
                }
            }
        }
        Ok(any)
    }
}

/// A shuffle of all lanes.
fn shuffle_whole(r: &mut Registers, how: Shuffle, regs: &ShuffleRegs) {
    let (from, by, clamp) = (r.word(regs.from), r.word(regs.by), r.word(regs.clamp));
    let differ = |words: &[u32; LANES], first: u32| words.iter().fold(0, |d, w| d | w ^ first);
    let mut valid = u32::MAX;
    let out = if how == Shuffle::Butterfly && differ(by, by[0]) | differ(clamp, 31) == 0 {
        let by = by[0] as usize & 31;
        std::array::from_fn(|lane| from[(lane ^ by) & 31])
    } else {
        std::array::from_fn(|lane| {
            let (at, is_valid) = source(how, lane, by[lane] as usize & 31, clamp[lane] as usize);
            valid &= !(u32::from(!is_valid) << lane);
            from[at & 31]
        })
    };
    r.set_word(regs.to, u32::MAX, &out);
    r.define(regs.to, u32::MAX, true);
    if let Some(reg) = regs.valid {
        r.set_predicate(reg, u32::MAX, valid);
        r.define(reg, u32::MAX, true);
    }
}

/// The lane that a shuffle reads, and whether it is in range.
fn source(how: Shuffle, lane: usize, by: usize, clamp: usize) -> (usize, bool) {
    let (limit, segments) = (clamp & 31, clamp >> 8 & 31);
    let last = lane & segments | limit & !segments;
    let first = lane & segments;
    let (from, valid) = match how {
        Shuffle::Up => (lane as isize - by as isize, lane as isize - by as isize >= last as isize),
        Shuffle::Down => ((lane + by) as isize, lane + by <= last),
        Shuffle::Butterfly => ((lane ^ by) as isize, lane ^ by <= last),
        Shuffle::Index => {
            let from = first | by & !segments;
            (from as isize, from <= last)
        }
    };
    if valid { (from as usize, true) } else { (lane, false) }
}
