//! The compiled program, run by a small BPF interpreter, against a model that reads the rules
//! directly; and the rules themselves against what each level promises.

use super::*;
use proptest::prelude::*;

const PROFILES: [Profile; 3] = [Profile::Basic, Profile::Standard, Profile::Strict];
const MACHINES: [Machine; 2] = [X86_64, AARCH64];
const KILL: u32 = 0x8000_0000;
const ALLOW: u32 = 0x7fff_0000;

/// `struct seccomp_data` without the instruction pointer, which no filter of ours reads.
#[derive(Clone, Copy, Debug)]
struct Data {
    number: u32,
    arch: u32,
    args: [u64; 6],
}

impl Data {
    fn load(&self, place: u32) -> u32 {
        match place {
            0 => self.number,
            4 => self.arch,
            16..64 => {
                let bytes: Vec<u8> = self.args.iter().flat_map(|arg| arg.to_le_bytes()).collect();
                let start = place as usize - 16;
                u32::from_le_bytes(bytes[start..start + 4].try_into().unwrap())
            }
            _ => panic!("load from {place}"),
        }
    }
}

/// Runs a program as the kernel would, with its rules: forward jumps inside the program only.
fn run(program: &[Instruction], data: &Data) -> u32 {
    run_counting(program, data).0
}

/// Also tells how many instructions it took.
fn run_counting(program: &[Instruction], data: &Data) -> (u32, usize) {
    let (mut at, mut accumulator, mut steps) = (0, 0, 0);
    loop {
        steps += 1;
        let Instruction { code, jump_true, jump_false, k } = program[at];
        let branch = |holds: bool| usize::from(if holds { jump_true } else { jump_false });
        at += 1;
        match code {
            0x20 => accumulator = data.load(k),
            0x54 => accumulator &= k,
            0x05 => at += k as usize,
            0x15 => at += branch(accumulator == k),
            0x35 => at += branch(accumulator >= k),
            0x06 => return (k, steps),
            _ => panic!("opcode {code:#x}"),
        }
    }
}

/// The same answer without any BPF.
fn model(machine: &Machine, profile: Profile, adjust: &Adjust, data: &Data) -> u32 {
    judge(machine, |call| decide(call, profile, adjust), data)
}

fn judge(machine: &Machine, decide: impl Fn(&Call) -> Decision, data: &Data) -> u32 {
    if data.arch != machine.audit_arch {
        return KILL;
    }
    if machine.x32 && data.number & 0xc000_0000 != 0 {
        return if data.number == u32::MAX { 0x0005_0000 | 38 } else { KILL };
    }
    let Some(call) = machine.calls.iter().find(|call| call.number == data.number) else {
        return 0x0005_0000 | 38;
    };
    let matches = |exception: &Exception| {
        exception.tests.iter().all(|test| {
            let arg = data.args[test.argument as usize];
            let read = if test.width == Width::U32 { arg % (1 << 32) } else { arg };
            let member = test.values.iter().any(|value| u64::from(*value) == read & test.mask);
            member != test.negated
        })
    };
    let Decision { first, exceptions, action, .. } = decide(call);
    let decided = first
        .filter(|exception| matches(exception))
        .or_else(|| exceptions.iter().find(|exception| matches(exception)))
        .map_or(action, |exception| exception.action);
    match decided {
        Action::Allow => ALLOW,
        Action::Errno(number) => 0x0005_0000 + u32::from(number),
    }
}

fn build(machine: &Machine, profile: Profile, adjust: &Adjust) -> Vec<Instruction> {
    program::assemble(machine, Hearing::Nothing, |call| decide(call, profile, adjust))
}

/// What the compiled filter of this machine says to one call by name.
fn ask(profile: Profile, adjust: &Adjust, name: &str, args: &[u64]) -> Result<(), u32> {
    let call = X86_64.calls.iter().find(|call| call.name == name).unwrap();
    let mut data = Data { number: call.number, arch: X86_64.audit_arch, args: [0; 6] };
    data.args[..args.len()].copy_from_slice(args);
    match run(&build(&X86_64, profile, adjust), &data) {
        ALLOW => Ok(()),
        answer => {
            assert_eq!(answer & 0xffff_0000, 0x0005_0000, "{name} neither allowed nor an errno");
            Err(answer & 0xffff)
        }
    }
}

const OK: Result<(), u32> = Ok(());
const NO: Result<(), u32> = Err(1);
const ABSENT: Result<(), u32> = Err(38);

fn adjustments() -> Vec<Adjust> {
    let some = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    vec![
        Adjust::default(),
        Adjust { refuse_unix_sockets: true, ..Adjust::default() },
        Adjust { allow: some(&["ptrace", "clone", "socket"]), ..Adjust::default() },
        Adjust {
            allow: some(&["socket", "socketpair", "clone3"]),
            deny: some(&["read", "clone3", "ioctl"]),
            refuse_unix_sockets: true,
        },
    ]
}

/// Values at the edges of every test in the rules, with and without bits that the kernel ignores.
fn interesting() -> Vec<u64> {
    let mut values = vec![0, 1, u64::from(u32::MAX), 1 << 32, u64::MAX, u64::MAX << 32];
    let tests =
        table::RULES.iter().flat_map(|rule| rule.exceptions).flat_map(|exception| exception.tests);
    for test in tests {
        values.push(test.mask & 0xffff_ffff);
        for value in test.values {
            let value = u64::from(*value);
            values.extend([value, value + 1, value | 1 << 32, value | !test.mask]);
        }
    }
    values.sort_unstable();
    values.dedup();
    values
}

#[test]
fn program_agrees_with_model_for_every_number_and_edge_value() {
    let edges = interesting();
    for machine in &MACHINES {
        for profile in PROFILES {
            for adjust in adjustments() {
                let program = build(machine, profile, &adjust);
                for number in (0..=600).chain([0x3fff_ffff, 0x4000_0000, 0x4000_0208, u32::MAX]) {
                    let call = machine.calls.iter().find(|call| call.number == number);
                    let judged = call
                        .is_some_and(|call| !decide(call, profile, &adjust).exceptions.is_empty());
                    for edge in if judged { &edges[..] } else { &edges[..2] } {
                        for place in 0..6 {
                            let mut data = Data { number, arch: machine.audit_arch, args: [0; 6] };
                            data.args[place] = *edge;
                            let expected = model(machine, profile, &adjust, &data);
                            assert_eq!(run(&program, &data), expected, "{profile:?} {data:?}");
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn program_agrees_with_model_for_random_calls(
        calls in prop::collection::vec(
            (
                prop_oneof![0_u32..600, any::<u32>()],
                prop::array::uniform6(prop_oneof![
                    any::<u64>(),
                    0_u64..64,
                    prop::sample::select(interesting()),
                ]),
            ),
            64,
        ),
        adjust in prop::sample::select(adjustments()),
    ) {
        for machine in &MACHINES {
            for profile in PROFILES {
                let program = build(machine, profile, &adjust);
                for (number, args) in &calls {
                    let data = Data { number: *number, arch: machine.audit_arch, args: *args };
                    prop_assert_eq!(
                        run(&program, &data),
                        model(machine, profile, &adjust, &data),
                        "{:?} {:?}", profile, data
                    );
                }
            }
        }
    }

    #[test]
    fn strict_allows_nothing_that_standard_refuses(
        args in prop::array::uniform6(prop_oneof![
            0_u64..64,
            prop::sample::select(interesting()),
        ]),
    ) {
        let none = Adjust::default();
        for machine in &MACHINES {
            for call in machine.calls {
                let data = Data { number: call.number, arch: machine.audit_arch, args };
                if model(machine, Profile::Strict, &none, &data) == ALLOW {
                    prop_assert_eq!(
                        model(machine, Profile::Standard, &none, &data), ALLOW,
                        "{} {:?}", call.name, args
                    );
                }
            }
        }
    }

    #[test]
    fn basic_allows_nothing_that_standard_refuses(
        args in prop::array::uniform6(prop_oneof![
            0_u64..64,
            prop::sample::select(interesting()),
        ]),
    ) {
        let none = Adjust::default();
        for call in X86_64.calls {
            let data = Data { number: call.number, arch: X86_64.audit_arch, args };
            if model(&X86_64, Profile::Basic, &none, &data) == ALLOW {
                prop_assert_eq!(
                    model(&X86_64, Profile::Standard, &none, &data), ALLOW,
                    "{} {:?}", call.name, args
                );
            }
        }
    }
}

#[test]
fn foreign_architectures_and_x32_die() {
    let everything = table::NAMES.iter().map(|name| (*name).to_owned()).collect();
    let open = Adjust { allow: everything, ..Adjust::default() };
    for profile in PROFILES {
        for adjust in [&Adjust::default(), &open] {
            let program = build(&X86_64, profile, adjust);
            for number in 0..=600 {
                let i386 = Data { number, arch: 0x4000_0003, args: [0; 6] };
                assert_eq!(run(&program, &i386), KILL);
                let x32 = Data { number: number | 1 << 30, arch: 0xc000_003e, args: [0; 6] };
                assert_eq!(run(&program, &x32), KILL);
            }
        }
    }
}

#[test]
fn number_of_a_call_cancelled_by_a_tracer_is_no_crime() {
    let program = build(&X86_64, Profile::Standard, &Adjust::default());
    let data = Data { number: u32::MAX, arch: X86_64.audit_arch, args: [0; 6] };
    assert_eq!(run(&program, &data), 0x0005_0000 | 38);
}

#[test]
fn programs_are_small_and_the_search_is_shallow() {
    for machine in &MACHINES {
        for profile in PROFILES {
            for adjust in adjustments() {
                let program = build(machine, profile, &adjust);
                assert!(program.len() < 450, "{profile:?}: {} instructions", program.len());
                for call in machine.calls {
                    let data = Data { number: call.number, arch: machine.audit_arch, args: [0; 6] };
                    let (_, steps) = run_counting(&program, &data);
                    let judged = decide(call, profile, &adjust);
                    if judged.first.is_none() && judged.exceptions.is_empty() {
                        assert!(steps <= 14, "{} takes {steps} steps", call.name);
                    }
                }
            }
        }
    }
}

/// Our own filters are short enough to need no long jump, so make one that is not.
#[test]
fn jumps_beyond_255_instructions_arrive() {
    let calls: Vec<Call> =
        (0..90).map(|n| Call { number: 3 * n, name: "any", rules: [None; 3] }).collect();
    let machine = Machine { audit_arch: 1, calls: calls.leak(), x32: true };
    let judged: Vec<&Rule> =
        table::RULES.iter().filter(|rule| !rule.exceptions.is_empty()).collect();
    let decide = |call: &Call| Decision {
        first: Some(&NO_UNIX_SOCKET),
        exceptions: judged[call.number as usize % judged.len()].exceptions,
        ..Decision::plain(Action::Errno(u16::try_from(100 + call.number).unwrap()))
    };
    let program = program::assemble(&machine, Hearing::Nothing, decide);
    assert!((1000..4096).contains(&program.len()), "{}", program.len());
    assert!(program.iter().any(|instruction| instruction.code == 0x05));
    for number in (0..300).chain([0x4000_0000, u32::MAX]) {
        for edge in interesting() {
            for args in [[edge, 0, 0, 0, 0, 0], [0, edge, edge, edge, edge, 0], [edge; 6]] {
                let data = Data { number, arch: 1, args };
                assert_eq!(run(&program, &data), judge(&machine, decide, &data), "{data:?}");
            }
        }
    }
    assert_eq!(run(&program, &Data { number: 0, arch: 2, args: [0; 6] }), KILL);
}

#[test]
fn every_call_of_both_architectures_has_been_decided() {
    for machine in &MACHINES {
        for call in machine.calls {
            assert!(call.rules.iter().all(Option::is_some), "{} has no rule", call.name);
        }
    }
}

#[test]
fn calls_are_in_order_and_numbered_as_the_kernel_does() {
    for machine in &MACHINES {
        assert!(machine.calls.is_sorted_by(|a, b| a.number < b.number));
    }
    let number = |machine: &Machine, name: &str| {
        machine.calls.iter().find(|call| call.name == name).map(|call| call.number)
    };
    for (name, x86_64, aarch64) in [
        ("read", Some(0), Some(63)),
        ("openat", Some(257), Some(56)),
        ("execve", Some(59), Some(221)),
        ("open", Some(2), None),
        ("clone3", Some(435), Some(435)),
        ("file_setattr", Some(469), Some(469)),
    ] {
        assert_eq!((number(&X86_64, name), number(&AARCH64, name)), (x86_64, aarch64), "{name}");
    }
    assert_eq!(name(u32::MAX), None);
    assert!(name(NATIVE.calls[0].number).is_some());
}

#[test]
fn sharp_edges_are_refused_at_every_level() {
    let none = Adjust::default();
    for profile in PROFILES {
        for name in [
            "unshare",
            "setns",
            "bpf",
            "keyctl",
            "add_key",
            "request_key",
            "userfaultfd",
            "perf_event_open",
            "mount",
            "umount2",
            "pivot_root",
            "chroot",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
            "move_mount",
            "open_tree",
            "mount_setattr",
            "ptrace",
            "process_vm_readv",
            "process_vm_writev",
            "kcmp",
            "pidfd_getfd",
            "open_by_handle_at",
            "name_to_handle_at",
            "init_module",
            "finit_module",
            "kexec_load",
            "reboot",
            "swapon",
            "acct",
            "quotactl",
            "settimeofday",
            "clock_settime",
            "adjtimex",
            "sethostname",
            "syslog",
            "iopl",
            "ioperm",
            "modify_ldt",
            "fanotify_init",
            "vmsplice",
            "sched_setattr",
            "process_madvise",
            "move_pages",
        ] {
            assert_eq!(ask(profile, &none, name, &[]), NO, "{name} at {profile:?}");
        }
        for name in [
            "clone3",
            "openat2",
            "io_uring_setup",
            "io_uring_enter",
            "io_uring_register",
            "memfd_secret",
            "statmount",
            "listmount",
        ] {
            assert_eq!(ask(profile, &none, name, &[]), ABSENT, "{name} at {profile:?}");
        }
        assert_eq!(ask(profile, &none, "splice", &[]), Err(22));
    }
}

#[test]
fn clone_makes_threads_but_no_namespaces() {
    let none = Adjust::default();
    for profile in PROFILES {
        let clone = |flags| ask(profile, &none, "clone", &[flags]);
        assert_eq!(clone(0x003d_0f00), OK); // pthread_create
        assert_eq!(clone(0x0120_0011), OK); // fork
        assert_eq!(clone(1 << 60 | 17), OK); // the kernel reads the low word only
        for namespace in [17, 25, 26, 27, 28, 29, 30] {
            assert_eq!(clone(1 << namespace | 17), NO);
            assert_eq!(clone(1 << 40 | 1 << namespace | 17), NO);
        }
        assert_eq!(clone(0x8000 | 17), NO); // CLONE_PARENT
    }
}

#[test]
fn sockets_are_local_or_tcp_or_udp_and_absent_at_basic() {
    let none = Adjust::default();
    for profile in [Profile::Standard, Profile::Strict] {
        let socket =
            |family, kind, protocol| ask(profile, &none, "socket", &[family, kind, protocol]);
        assert_eq!(socket(1, 1 | 0o2000000, 0), OK);
        assert_eq!(socket(2, 1 | 0o4000, 6), OK);
        assert_eq!(socket(10, 2, 17), OK);
        assert_eq!(socket(7 << 32 | 38, 5, 0), NO, "AF_ALG behind high bits");
        for family in [0, 3, 15, 16, 17, 31, 38, 40, 43, 44] {
            assert_eq!(socket(family, 2, 0), NO);
            assert_eq!(socket(family, 1, 0), NO);
        }
        for protocol in [1, 132, 136, 255, 256, 262] {
            assert_eq!(socket(2, 2, protocol), NO);
            assert_eq!(socket(2, 1, protocol), NO);
        }
        assert_eq!(socket(2, 3, 0), NO, "raw");
        assert_eq!(socket(1, 3, 0), NO, "raw on a Unix socket is a datagram socket");
        assert_eq!(ask(profile, &none, "setsockopt", &[0, 6, 31]), NO, "kernel TLS");
        assert_eq!(ask(profile, &none, "setsockopt", &[0, 6, 1]), OK, "TCP_NODELAY");
    }
    for (family, kind, protocol) in [(1, 1, 0), (2, 1, 0), (10, 2, 0), (38, 5, 0)] {
        assert_eq!(ask(Profile::Basic, &none, "socket", &[family, kind, protocol]), NO);
    }
    assert_eq!(ask(Profile::Basic, &none, "socketpair", &[1, 1]), OK);
    assert_eq!(ask(Profile::Basic, &none, "socketpair", &[1, 2]), NO);
    assert_eq!(ask(Profile::Basic, &none, "sendto", &[3, 4, 5, 0, 0]), OK);
    assert_eq!(ask(Profile::Basic, &none, "sendto", &[3, 4, 5, 0, 1 << 32]), NO);
    for profile in PROFILES {
        assert_eq!(ask(profile, &none, "socketpair", &[2, 1]), NO);
        assert_eq!(ask(profile, &none, "sendmsg", &[0, 0, 1]), NO, "out of band");
    }
}

#[test]
fn mounted_host_directory_closes_unix_sockets_even_when_socket_is_allowed() {
    let mounted = Adjust { refuse_unix_sockets: true, ..Adjust::default() };
    let insisting = Adjust { allow: vec!["socket".into(), "socketpair".into()], ..mounted.clone() };
    for adjust in [&mounted, &insisting] {
        assert_eq!(ask(Profile::Standard, adjust, "socket", &[1, 1, 0]), NO);
        assert_eq!(ask(Profile::Standard, adjust, "socket", &[1 << 32 | 1, 1, 0]), NO);
        assert_eq!(ask(Profile::Standard, adjust, "socket", &[2, 1, 0]), OK);
        assert_eq!(ask(Profile::Standard, adjust, "socketpair", &[1, 1]), OK);
        assert_eq!(ask(Profile::Standard, adjust, "socketpair", &[1, 2]), NO);
        assert_eq!(ask(Profile::Standard, adjust, "socketpair", &[1, 3]), NO);
    }
    assert_eq!(ask(Profile::Standard, &insisting, "socket", &[38, 5, 0]), OK);
}

#[test]
fn terminals_cannot_be_typed_into_whatever_the_high_bits() {
    let none = Adjust::default();
    for profile in PROFILES {
        for command in [0x5412, 0x541c, 0x5423, 0x4008_6602, 0x4b72, 0xc018_aa3f] {
            assert_eq!(ask(profile, &none, "ioctl", &[0, command]), NO);
            assert_eq!(ask(profile, &none, "ioctl", &[0, 0xdead << 32 | command]), NO);
        }
        for command in [0x5401, 0x5413, 0x541b, 0x5421, 0x5451, 0x4004_9409] {
            assert_eq!(ask(profile, &none, "ioctl", &[0, command]), OK);
        }
    }
    assert_eq!(ask(Profile::Standard, &none, "ioctl", &[0, 0x8912]), OK);
    assert_eq!(ask(Profile::Strict, &none, "ioctl", &[0, 0x8912]), NO);
}

#[test]
fn no_file_becomes_setuid_or_setgid() {
    let none = Adjust::default();
    for profile in [Profile::Standard, Profile::Strict] {
        for (name, place) in [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)] {
            let mut args = [0; 6];
            for (mode, answer) in [(0o755, OK), (0o1777, OK), (0o4755, NO), (0o2755, NO)] {
                args[place] = mode;
                assert_eq!(ask(profile, &none, name, &args), answer, "{name} {mode:o}");
            }
        }
    }
    for profile in PROFILES {
        let openat = |flags, mode| ask(profile, &none, "openat", &[0, 0, flags, mode]);
        assert_eq!(openat(0, 0o7777), OK, "without O_CREAT the mode is garbage");
        assert_eq!(openat(0o102, 0o644), OK);
        assert_eq!(openat(0o102, 0o4644), NO);
        assert_eq!(openat(0o20200002, 0o2600), NO, "O_TMPFILE");
        assert_eq!(ask(profile, &none, "open", &[0, 0o100, 0o4000]), NO);
        assert_eq!(ask(profile, &none, "creat", &[0, 0o4000]), NO);
        let mknod = |mode| ask(profile, &none, "mknod", &[0, mode, 0]);
        assert_eq!((mknod(0o010644), mknod(0o100644), mknod(0o140644)), (OK, OK, OK));
        assert_eq!((mknod(0o020644), mknod(0o060644), mknod(0o104755)), (NO, NO, NO));
    }
}

#[test]
fn basic_reaches_no_other_process_and_no_metadata_by_path() {
    let none = Adjust::default();
    let ask = |name, args: &[u64]| ask(Profile::Basic, &none, name, args);
    assert_eq!(ask("prlimit64", &[0, 7, 0, 0]), OK);
    assert_eq!(ask("prlimit64", &[1234, 7, 0, 0]), NO);
    assert_eq!(ask("setpriority", &[0, 0, 5]), OK);
    assert_eq!(ask("setpriority", &[2, 0, 5]), NO);
    assert_eq!(ask("sched_setaffinity", &[1234]), NO);
    assert_eq!(ask("kill", &[u64::from(u32::MAX), 9]), NO);
    assert_eq!(ask("utimensat", &[3, 0, 0, 0]), OK);
    assert_eq!(ask("utimensat", &[3, 1 << 32, 0, 0]), NO, "a path above 4 GiB");
    for name in ["chmod", "fchmodat", "chown", "truncate", "setxattr", "shmget", "mq_open"] {
        assert_eq!(ask(name, &[]), NO, "{name}");
    }
}

#[test]
fn self_confinement_is_allowed_but_no_listener() {
    let none = Adjust::default();
    let seccomp = |flags| ask(Profile::Standard, &none, "seccomp", &[1, flags]);
    assert_eq!((seccomp(0), seccomp(1), seccomp(8), seccomp(9)), (OK, OK, NO, NO));
    assert_eq!(ask(Profile::Strict, &none, "seccomp", &[1, 0]), NO);
    assert_eq!(ask(Profile::Standard, &none, "prctl", &[22]), OK);
    assert_eq!(ask(Profile::Strict, &none, "prctl", &[22]), NO);
    for profile in PROFILES {
        assert_eq!(ask(profile, &none, "prctl", &[15]), OK, "PR_SET_NAME");
        assert_eq!(ask(profile, &none, "prctl", &[35]), NO, "PR_SET_MM");
        assert_eq!(ask(profile, &none, "prctl", &[67]), NO, "PR_SET_MEMORY_MERGE");
        assert_eq!(ask(profile, &none, "sched_setscheduler", &[0, 3]), OK);
        assert_eq!(ask(profile, &none, "sched_setscheduler", &[0, 1]), NO, "SCHED_FIFO");
        assert_eq!(ask(profile, &none, "personality", &[0xffff_ffff]), OK);
        assert_eq!(ask(profile, &none, "personality", &[0x0040_0000]), NO, "READ_IMPLIES_EXEC");
    }
    assert_eq!(ask(Profile::Standard, &none, "personality", &[0x0004_0000]), OK);
    assert_eq!(ask(Profile::Strict, &none, "personality", &[0x0004_0000]), NO);
}

#[test]
fn deny_beats_allow_and_allow_beats_every_argument_rule() {
    let adjust = Adjust {
        allow: vec!["clone".into(), "ptrace".into()],
        deny: vec!["ptrace".into(), "write".into()],
        refuse_unix_sockets: false,
    };
    assert_eq!(ask(Profile::Strict, &adjust, "clone", &[1 << 28]), OK);
    assert_eq!(ask(Profile::Strict, &adjust, "ptrace", &[]), NO);
    assert_eq!(ask(Profile::Strict, &adjust, "write", &[]), NO);
}

#[test]
fn misspelt_name_is_an_error_that_names_the_nearest() {
    let error = |name: &str| {
        let adjust = Adjust { deny: vec![name.into()], ..Adjust::default() };
        compile(Profile::Standard, &adjust, Hearing::Nothing).unwrap_err().to_string()
    };
    assert_eq!(error("ptrce"), "no system call is named \"ptrce\"; did you mean \"ptrace\"?");
    assert_eq!(error("launch_rocket"), "no system call is named \"launch_rocket\"");
    assert_eq!(error(""), "no system call is named \"\"");
    let elsewhere = Adjust { deny: vec!["open".into(), "fstatat".into()], ..Adjust::default() };
    assert!(compile(Profile::Standard, &elsewhere, Hearing::Nothing).is_ok());
}

#[test]
fn every_rule_can_be_read() {
    for profile in PROFILES {
        let views: Vec<RuleView> = rules(profile).collect();
        assert_eq!(views.len(), NATIVE.calls.len());
        assert!(views.iter().all(|view| !view.reason.is_empty()));
        let clone = views.iter().find(|view| view.name == "clone").unwrap();
        assert_eq!(clone.action, Action::Allow);
        assert!(clone.condition.contains("EPERM if flags & CLONE_NEWNS|"));
    }
}

#[test]
fn only_opens_that_write_to_what_must_be_there_are_looked_at() {
    const SEEN: u32 = 0x7fc0_0000;
    let program = |hearing| compile(Profile::Standard, &Adjust::default(), hearing).unwrap();
    let heard = program(Hearing::Refusals);
    let ask = |program: &[Instruction], name: &str, flags: u64| {
        let call = X86_64.calls.iter().find(|call| call.name == name).unwrap();
        let mut data = Data { number: call.number, arch: X86_64.audit_arch, args: [0; 6] };
        data.args[if name == "open" { 1 } else { 2 }] = flags;
        run(program, &data)
    };
    let (read, write, both, make, path, unnamed) = (0, 0o1, 0o2, 0o100, 0o1000_0000, 0o2020_0000);
    for name in ["open", "openat"] {
        for flags in [write, both, write | 0o2000, both | 0o1000, 3, 1 << 32 | write] {
            assert_eq!(ask(&heard, name, flags), SEEN, "{name} {flags:o}");
            assert_eq!(ask(&program(Hearing::Nothing), name, flags), ALLOW, "{name} {flags:o}");
        }
        for flags in [read, read | make, write | make, both | path, both | unnamed, 1 << 32] {
            assert_eq!(ask(&heard, name, flags), ALLOW, "{name} {flags:o}");
        }
        assert_eq!(ask(&program(Hearing::Record), name, read), SEEN);
    }
}

#[test]
fn a_refusal_that_is_told_carries_its_errno_and_how_grave_it_is() {
    let heard = compile(Profile::Standard, &Adjust::default(), Hearing::Refusals).unwrap();
    let ask = |name: &str, first: u64| {
        let call = X86_64.calls.iter().find(|call| call.name == name).unwrap();
        let args = [first, 0, 0, 0, 0, 0];
        run(&heard, &Data { number: call.number, arch: X86_64.audit_arch, args })
    };
    for (name, first, errno, severity) in [
        ("mount", 0, 1, Severity::High),
        ("init_module", 0, 1, Severity::Critical),
        ("io_uring_setup", 0, 38, Severity::Info),
        ("ptrace", 0, 1, Severity::Info),
        ("ptrace", 16, 1, Severity::High),
    ] {
        let word = ask(name, first);
        assert_eq!(word >> 16, 0x7fc0, "{name}");
        assert_eq!(word & 0xff, errno, "{name}");
        assert_eq!(word >> 8 & 0xff, u32::from(severity.weight()), "{name}");
    }
}
