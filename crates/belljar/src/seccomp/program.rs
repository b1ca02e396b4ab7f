//! Writes decisions as classic BPF.
//!
//! The program is made from its end to its start, because BPF only jumps forwards: whatever an
//! instruction jumps to has been placed when it is written. A conditional jump reaches 255
//! instructions; beyond that it goes by way of an unconditional one.
//!
//! Only loads, AND, JEQ, JGE, JA and RET are used. Those are what the kernel can follow when it
//! works out, at installation, which calls are allowed whatever their arguments
//! (`seccomp_is_const_allow`); such calls then skip the filter altogether.

use super::table::{Call, Exception, Test, Width};
use super::{Action, Decision, Hearing, Machine, Mark, Seen};
use belljar_jail::tried::Answer;
use belljar_sys::notify::RET_USER_NOTIF;
use belljar_sys::seccomp::Instruction;

// linux/bpf_common.h
const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_NOT_LESS: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

// linux/seccomp.h
const KILL_PROCESS: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

// Places in `struct seccomp_data`. Both architectures are little-endian: low word first.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// Set in the number of every x32 call, which the kernel reports under x86_64's own name.
const X32_BIT: u32 = 0x4000_0000;

/// What a tracer leaves as the number of a call that it cancelled.
const CANCELLED: u32 = u32::MAX;

pub(super) fn assemble(
    machine: &Machine,
    hearing: Hearing,
    decide: impl Fn(&Call) -> Decision,
) -> Vec<Instruction> {
    let ranges = ranges(machine.calls, decide);
    let mut program = Assembler { hearing, ..Assembler::default() };
    let mut start = program.search(&ranges);
    if machine.x32 {
        let kill = program.finish(KILL_PROCESS);
        let cancelled = program.finish(ERRNO | 38);
        let alien = program.jump(JUMP_EQUAL, CANCELLED, cancelled, kill);
        start = program.jump(JUMP_NOT_LESS, X32_BIT, alien, start);
    }
    let native = program.load(NUMBER, start);
    let kill = program.finish(KILL_PROCESS);
    let known = program.jump(JUMP_EQUAL, machine.audit_arch, native, kill);
    program.load(ARCHITECTURE, known);
    program.backwards.reverse();
    program.backwards
}

/// From this number on, up to the next range, the decision is the same.
type Range = (u32, Decision);

/// All numbers there are, from 0 to the largest. What lies between known calls and above them is
/// answered as a kernel that lacks it would.
fn ranges(calls: &[Call], decide: impl Fn(&Call) -> Decision) -> Vec<Range> {
    let unknown = Decision::ABSENT;
    let mut ranges: Vec<Range> = Vec::new();
    let mut push = |start: u32, decision: Decision| match ranges.last() {
        Some((_, last)) if *last == decision => {}
        _ => ranges.push((start, decision)),
    };
    let mut next = 0;
    for call in calls {
        if call.number > next {
            push(next, unknown);
        }
        push(call.number, decide(call));
        next = call.number + 1;
    }
    push(next, unknown);
    ranges
}

/// Where an instruction stands, counted from the end of the program.
type Label = usize;

#[derive(Default)]
struct Assembler {
    hearing: Hearing,
    backwards: Vec<Instruction>,
    /// The last place of each return value.
    returns: Vec<(u32, Label)>,
    /// Calls of one kind share the code of their decision.
    decided: Vec<(Decision, Label)>,
}

impl Assembler {
    /// A balanced tree over the call's number, which is in the accumulator.
    fn search(&mut self, ranges: &[Range]) -> Label {
        match ranges {
            [] => self.finish(KILL_PROCESS),
            [(_, decision)] => self.decision(decision),
            _ => {
                let (below, above) = ranges.split_at(ranges.len() / 2);
                let pivot = above[0].0;
                let above = self.search(above);
                let below = self.search(below);
                self.jump(JUMP_NOT_LESS, pivot, above, below)
            }
        }
    }

    fn decision(&mut self, decision: &Decision) -> Label {
        if let Some((_, label)) = self.decided.iter().find(|(known, _)| known == decision) {
            return *label;
        }
        let mut label = self.answer(decision.action, decision.mark, decision.seen);
        for exception in decision.first.into_iter().chain(decision.exceptions).rev() {
            label = self.exception(exception, decision.seen, label);
        }
        self.decided.push((*decision, label));
        label
    }

    /// What is told of goes to the listener, with the answer in the bits that the kernel ignores; zero
    /// there lets the call go on. How grave it is stands beside it: so the listener knows what it must not
    /// lose among the rest.
    fn answer(&mut self, action: Action, mark: Mark, seen: Seen) -> Label {
        match (action, mark) {
            (Action::Allow, _) => match seen {
                Seen::Never => self.finish(ALLOW),
                Seen::Always => self.finish(RET_USER_NOTIF),
                Seen::If(tests) => {
                    let (holds, fails) = (self.finish(RET_USER_NOTIF), self.finish(ALLOW));
                    self.tests(tests, holds, fails)
                }
            },
            (Action::Errno(number), Mark::Told(_, severity))
                if self.hearing != Hearing::Nothing =>
            {
                let answer = Answer { errno: number, weight: severity.weight() };
                self.finish(RET_USER_NOTIF | u32::from(answer.to_bits()))
            }
            (Action::Errno(number), _) => self.finish(ERRNO | u32::from(number)),
        }
    }

    fn exception(&mut self, exception: &Exception, seen: Seen, otherwise: Label) -> Label {
        let label = self.answer(exception.action, exception.mark, seen);
        self.tests(exception.tests, label, otherwise)
    }

    /// All of them hold, or not.
    fn tests(&mut self, tests: &[Test], holds: Label, fails: Label) -> Label {
        tests.iter().rev().fold(holds, |label, test| self.test(test, label, fails))
    }

    fn test(&mut self, test: &Test, holds: Label, fails: Label) -> Label {
        let (found, mut absent) = if test.negated { (fails, holds) } else { (holds, fails) };
        let low = ARGUMENTS + 8 * test.argument;
        let high = low + 4;
        let [mask_low, mask_high] = [test.mask & 0xffff_ffff, test.mask >> 32];
        match test.width {
            Width::U32 => {
                for value in test.values.iter().rev() {
                    absent = self.jump(JUMP_EQUAL, *value, found, absent);
                }
                self.masked_load(low, mask_low, absent)
            }
            // Values have 32 bits, so the high word must be zero.
            Width::U64 => {
                for value in test.values.iter().rev() {
                    let equal = self.jump(JUMP_EQUAL, *value, found, absent);
                    let low_word = self.masked_load(low, mask_low, equal);
                    let zero = self.jump(JUMP_EQUAL, 0, low_word, absent);
                    absent = self.masked_load(high, mask_high, zero);
                }
                absent
            }
        }
    }

    fn masked_load(&mut self, place: u32, mask: u64, then: Label) -> Label {
        match u32::try_from(mask) {
            Ok(mask) if mask != u32::MAX => {
                let then = self.step(AND, mask, then);
                self.load(place, then)
            }
            _ => self.load(place, then),
        }
    }

    fn load(&mut self, place: u32, then: Label) -> Label {
        self.step(LOAD, place, then)
    }

    /// An instruction that goes on to the one behind it, which must be `then`.
    fn step(&mut self, code: u16, k: u32, then: Label) -> Label {
        if self.distance(then) > 0 {
            self.goto(then);
        }
        self.push(Instruction { code, jump_true: 0, jump_false: 0, k })
    }

    fn finish(&mut self, value: u32) -> Label {
        if let Some((_, label)) = self.returns.iter().find(|(known, _)| *known == value)
            && self.distance(*label) <= FARTHEST
        {
            return *label;
        }
        let label = self.push(Instruction { code: RETURN, jump_true: 0, jump_false: 0, k: value });
        self.returns.retain(|(known, _)| *known != value);
        self.returns.push((value, label));
        label
    }

    fn jump(&mut self, code: u16, k: u32, yes: Label, no: Label) -> Label {
        let yes = self.near(yes);
        let no = self.near(no);
        let jump_true = self.short(yes);
        let jump_false = self.short(no);
        self.push(Instruction { code, jump_true, jump_false, k })
    }

    /// The same place, or one nearby that leads there.
    fn near(&mut self, label: Label) -> Label {
        if self.distance(label) <= FARTHEST {
            return label;
        }
        let there = self.backwards[label];
        if there.code == RETURN { self.finish(there.k) } else { self.goto(label) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 4096 instructions")]
    fn goto(&mut self, label: Label) -> Label {
        let k = self.distance(label) as u32;
        self.push(Instruction { code: JUMP, jump_true: 0, jump_false: 0, k })
    }

    #[expect(clippy::cast_possible_truncation, reason = "`near` came first, see FARTHEST")]
    fn short(&self, label: Label) -> u8 {
        debug_assert!(self.distance(label) <= FARTHEST + 1);
        self.distance(label) as u8
    }

    /// How many instructions the next one would jump over to get there.
    fn distance(&self, label: Label) -> usize {
        self.backwards.len() - label - 1
    }

    fn push(&mut self, instruction: Instruction) -> Label {
        self.backwards.push(instruction);
        self.backwards.len() - 1
    }
}

/// One less than a jump reaches, because making the second target of a jump near may put one more
/// instruction before the first.
const FARTHEST: usize = u8::MAX as usize - 1;
