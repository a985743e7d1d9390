//! Race detection.
//!
//! Every granule of memory has stamps of its last write and of two reads: block, thread, and the clock of the thread's
//! warp. A barrier merges the clocks of its warps, so that an access is ordered after another one if its warp's vector
//! clock includes it (as in FastTrack, Flanagan and Freund, 2009, with warps for threads). Threads of one warp are
//! ordered by barriers too, not by running in lockstep. Threads of two blocks are not ordered unless both blocks have
//! run a fence for the whole device.

/// The stamps of a granule: its last write, and two reads since.
pub(super) type Cell = [u64; 3];

const CLOCK_BITS: u32 = 21;
const ATOMIC: u64 = 1 << CLOCK_BITS;
const THREAD_AT: u32 = CLOCK_BITS + 1;
const BLOCK_AT: u32 = 32;

/// The vector clocks of a block's warps.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    block: u64,
    n_warps: usize,
    own: Vec<u32>,
    /// [n_warps, n_warps]
    seen: Vec<u32>,
    /// Whether a clock has overflowed. Nothing is reported from then on.
    exhausted: bool,
}

/// A warp, and the kind of its access.
#[derive(Debug, Clone, Copy)]
pub(super) struct Actor<'a> {
    pub(super) clocks: &'a Clocks,
    pub(super) warp: usize,
    pub(super) writes: bool,
    pub(super) atomic: bool,
    /// For each block, whether it has run a fence for the whole device.
    pub(super) fenced: &'a [bool],
}

impl Clocks {
    pub(crate) fn start(&mut self, block: usize, n_warps: usize) {
        self.block = block as u64;
        self.n_warps = n_warps;
        self.exhausted = false;
        self.own.clear();
        self.own.resize(n_warps, 1);
        self.seen.clear();
        self.seen.resize(n_warps * n_warps, 0);
    }

    /// Orders the accesses of a warp's lanes.
    pub(super) fn warp_barrier(&mut self, warp: usize) {
        self.seen[warp * self.n_warps + warp] = self.own[warp];
        self.tick(warp);
    }

    fn tick(&mut self, warp: usize) {
        self.own[warp] += 1;
        self.exhausted |= self.own[warp] >= 1 << CLOCK_BITS;
    }

    /// A warp arrives at a barrier: its clocks are merged into `knows`.
    pub(super) fn arrive(&mut self, warp: usize, knows: &mut Vec<u32>) {
        knows.resize(self.n_warps, 0);
        let row = warp * self.n_warps;
        self.seen[row + warp] = self.own[warp];
        for (knows, seen) in knows.iter_mut().zip(&self.seen[row..]) {
            *knows = (*knows).max(*seen);
        }
        self.tick(warp);
    }

    /// A warp leaves a barrier and receives its merged clocks.
    pub(super) fn leave(&mut self, warp: usize, knows: &[u32]) {
        let row = warp * self.n_warps;
        for (seen, knows) in self.seen[row..row + self.n_warps].iter_mut().zip(knows) {
            *seen = (*seen).max(*knows);
        }
    }
}

impl Actor<'_> {
    /// The stamp of a lane.
    #[inline]
    pub(super) fn stamp(&self, lane: usize) -> u64 {
        let thread = (self.warp * 32 + lane) as u64;
        let atomic = if self.atomic { ATOMIC } else { 0 };
        let clock = u64::from(self.clocks.own[self.warp]);
        (self.clocks.block + 1) << BLOCK_AT | thread << THREAD_AT | atomic | clock
    }

    #[inline]
    fn is_ordered(&self, stamp: u64, now: u64) -> bool {
        if stamp == 0 || (stamp ^ now) >> THREAD_AT == 0 || stamp & now & ATOMIC != 0 {
            return true;
        }
        if (stamp ^ now) >> BLOCK_AT != 0 {
            let other = (stamp >> BLOCK_AT) as usize - 1;
            return self.fenced[other] && self.fenced[self.clocks.block as usize];
        }
        let warp = (stamp >> THREAD_AT & 0x3ff) as usize / 32;
        let clock = stamp as u32 & ((1 << CLOCK_BITS) - 1);
        clock <= self.clocks.seen[self.warp * self.clocks.n_warps + warp] || self.clocks.exhausted
    }

    /// Records an access to `cells` by the thread with the stamp `now`. Returns the stamp of an access that it races
    /// with.
    #[inline]
    pub(super) fn touch(&self, cells: &mut [Cell], now: u64) -> Option<u64> {
        for cell in cells {
            let [write, first, second] = *cell;
            if write != 0 && !self.is_ordered(write, now) {
                return Some(write);
            }
            if self.writes {
                for read in [first, second] {
                    if !self.is_ordered(read, now) {
                        return Some(read);
                    }
                }
                *cell = [now, 0, 0];
            } else if first == 0 || self.is_ordered(first, now) {
                cell[1] = now;
            } else {
                cell[2] = now;
            }
        }
        None
    }
}

/// A thread of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThreadId {
    pub(super) block: usize,
    pub(super) thread: usize,
}

impl ThreadId {
    /// The thread of a stamp.
    pub(super) fn of_stamp(stamp: u64) -> Self {
        Self {
            block: (stamp >> BLOCK_AT) as usize - 1,
            thread: (stamp >> THREAD_AT & 0x3ff) as usize,
        }
    }
}

/// The unit of race checks in global memory, and the launch that they are for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Granularity {
    pub(super) granule: usize,
    pub(super) launch: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs accesses and barriers of a block with three warps. Returns the thread that the last access races with.
    fn run(steps: &[&str]) -> Option<usize> {
        let mut clocks = Clocks::default();
        clocks.start(0, 3);
        let mut cells = [[0; 3]; 1];
        let mut found = None;
        for step in steps {
            let (what, threads) = step.split_once(' ').unwrap();
            let threads: Vec<usize> = threads.split(' ').map(|t| t.parse().unwrap()).collect();
            match what {
                "barrier" => {
                    let mut knows = Vec::new();
                    threads.iter().for_each(|&w| clocks.arrive(w, &mut knows));
                    threads.iter().for_each(|&w| clocks.leave(w, &knows));
                }
                "warp" => clocks.warp_barrier(threads[0]),
                _ => {
                    let (warp, lane) = (threads[0] / 32, threads[0] % 32);
                    let (writes, atomic) = (what != "read", what == "atomic");
                    let actor = Actor { clocks: &clocks, warp, writes, atomic, fenced: &[false] };
                    assert_eq!(found, None, "only the last step may race");
                    found = actor
                        .touch(&mut cells, actor.stamp(lane))
                        .map(|stamp| ThreadId::of_stamp(stamp).thread);
                }
            }
        }
        found
    }

    #[test]
    fn order_of_threads() {
        for (steps, expected) in [
            (&["write 0", "read 0", "write 0"][..], None),
            (&["write 0", "read 1"], Some(0)),
            (&["read 0", "read 1", "read 64", "write 64"], Some(0)),
            (&["write 0", "warp 0", "read 1"], None),
            (&["write 0", "warp 1", "read 40"], Some(0)),
            (&["write 0", "barrier 0 1 2", "read 40", "read 70"], None),
            (&["write 0", "barrier 0 1", "read 40", "read 70"], Some(0)),
            // Ordered through a third warp: 0 before 1, 1 before 2.
            (&["write 0", "barrier 0 1", "barrier 1 2", "read 70"], None),
            (&["read 5", "barrier 0 1 2", "write 40"], None),
            (&["barrier 0 1 2", "read 5", "write 40"], Some(5)),
            (&["atomic 0", "atomic 40", "atomic 70"], None),
            (&["atomic 0", "read 40"], Some(0)),
        ] {
            assert_eq!(run(steps), expected, "{steps:?}");
        }
    }
}
