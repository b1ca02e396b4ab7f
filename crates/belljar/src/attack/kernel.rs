//! The kernel's sharp edges: keys, modules, tracing, clocks, and the other doors for calls.
//!
//! Where success would change the host, the arguments are wrong in a way that the kernel notices
//! only after it has looked at the caller's rights.

use super::{Attempt, Category, Expect, Probe, reached};
use belljar_sys::attempt::call::{Arg, Call, syscall};
use belljar_sys::attempt::special;

use Category::Kernel;

const EPERM: Expect = Expect::Errno("EPERM");
const ENOSYS: Expect = Expect::Errno("ENOSYS");
const SIGSYS: Expect = Expect::Signal("SIGSYS");

const NOWHERE: &str = "/belljar-attack-nowhere";

pub(super) const PROBES: &[Probe] = &[
    Probe::new("keyctl", Kernel, "seccomp", "Looks at the session's keyring", |_| {
        reached(special::session_keyring().map(|()| 0), &["ENOKEY"])
    })
    .walled(EPERM),
    Probe::new("add_key", Kernel, "seccomp", "Adds a key", |_| {
        let (kind, name, value) = (Arg::Text("user"), Arg::Text("belljar"), Arg::Bytes(b"1"));
        // Into the keyring of this process alone, gone when it ends.
        reached(syscall(Call::ADD_KEY, &mut [kind, name, value, Arg::Int(1), Arg::Int(-2)]), &[])
    })
    .walled(EPERM),
    Probe::new("request_key", Kernel, "seccomp", "Asks for another's key", |_| {
        let (kind, name) = (Arg::Text("user"), Arg::Text("belljar-attack-nothing"));
        let args = &mut [kind, name, Arg::Null, Arg::Int(0)];
        reached(syscall(Call::REQUEST_KEY, args), &["ENOKEY"])
    })
    .walled(EPERM),
    Probe::new("bpf", Kernel, "seccomp", "Makes a BPF map", |_| {
        reached(special::bpf_map().map(|()| 0), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("perf", Kernel, "seccomp", "Opens a performance counter", |_| {
        let mut attributes = [0_u8; 64];
        attributes[0] = 1; // a software event
        attributes[4] = 64; // the size of this structure
        let event = Arg::Bytes(&attributes);
        let args = &mut [event, Arg::Int(0), Arg::Int(-1), Arg::Int(-1), Arg::Int(0)];
        reached(syscall(Call::PERF_EVENT_OPEN, args), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("userfaultfd", Kernel, "seccomp", "Takes over its own page faults", |_| {
        reached(syscall(Call::USERFAULTFD, &mut [Arg::Int(1)]), &[])
    })
    .walled(EPERM),
    Probe::new("io_uring", Kernel, "seccomp", "Sets up an io_uring, past every filter", |_| {
        reached(special::io_uring().map(|()| 0), &[])
    })
    .needs_root()
    .walled(ENOSYS),
    Probe::new("init_module", Kernel, "seccomp", "Loads a kernel module from memory", |_| {
        let nothing = [0_u8; 16];
        let args = &mut [Arg::Bytes(&nothing), Arg::Int(16), Arg::Text("")];
        reached(syscall(Call::INIT_MODULE, args), &["ENOEXEC", "EINVAL"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("finit_module", Kernel, "seccomp", "Loads a kernel module from a file", |_| {
        let args = &mut [Arg::Int(-1), Arg::Text(""), Arg::Int(0)];
        reached(syscall(Call::FINIT_MODULE, args), &["EBADF"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("delete_module", Kernel, "seccomp", "Unloads a kernel module", |_| {
        let args = &mut [Arg::Text("belljar_attack_nothing"), Arg::Int(0o4000)];
        reached(syscall(Call::DELETE_MODULE, args), &["ENOENT"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("kexec", Kernel, "seccomp", "Loads another kernel", |_| {
        // More segments than there may be, and none of them given.
        let args = &mut [Arg::Null, Arg::Int(1000), Arg::Null, Arg::Int(0)];
        reached(syscall(Call::KEXEC_LOAD, args), &["EINVAL"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("reboot", Kernel, "seccomp", "Restarts the machine, with the wrong magic", |_| {
        let args = &mut [Arg::Int(0), Arg::Int(0), Arg::Int(0), Arg::Null];
        reached(syscall(Call::REBOOT, args), &["EINVAL"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("swapon", Kernel, "seccomp", "Adds swap", |_| {
        reached(syscall(Call::SWAPON, &mut [Arg::Text(NOWHERE), Arg::Int(0)]), &["ENOENT"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("swapoff", Kernel, "seccomp", "Takes swap away", |_| {
        reached(syscall(Call::SWAPOFF, &mut [Arg::Text(NOWHERE)]), &["ENOENT", "EINVAL"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("acct", Kernel, "seccomp", "Turns on accounting of the host", |_| {
        reached(syscall(Call::ACCT, &mut [Arg::Text(NOWHERE)]), &["ENOENT"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("syslog", Kernel, "seccomp", "Asks for the kernel's log", |_| {
        reached(syscall(Call::SYSLOG, &mut [Arg::Int(10), Arg::Null, Arg::Int(0)]), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("iopl", Kernel, "seccomp", "Takes the processor's ports", |_| {
        reached(syscall(Call::IOPL, &mut [Arg::Int(3)]), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("ioperm", Kernel, "seccomp", "Takes one of the processor's ports", |_| {
        let args = &mut [Arg::Int(0x80), Arg::Int(1), Arg::Int(1)];
        reached(syscall(Call::IOPERM, args), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("modify_ldt", Kernel, "seccomp", "Reads the local descriptor table", |_| {
        let mut table = [0_u8; 16];
        let args = &mut [Arg::Int(0), Arg::Exchange(&mut table), Arg::Int(16)];
        reached(syscall(Call::MODIFY_LDT, args), &[])
    })
    .walled(EPERM),
    Probe::new("quotactl", Kernel, "seccomp", "Asks for disk quotas", |_| {
        const Q_GETFMT: i64 = 0x80_0004 << 8;
        let args = &mut [Arg::Int(Q_GETFMT), Arg::Text(NOWHERE), Arg::Int(0), Arg::Null];
        reached(syscall(Call::QUOTACTL, args), &["ENOENT"])
    })
    .walled(EPERM),
    Probe::new("settimeofday", Kernel, "seccomp", "Sets the clock, to nothing", |_| {
        reached(syscall(Call::SETTIMEOFDAY, &mut [Arg::Null, Arg::Null]), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("clock_settime", Kernel, "seccomp", "Sets the clock, to an invalid time", |_| {
        let invalid = [0xff_u8; 16];
        let args = &mut [Arg::Int(0), Arg::Bytes(&invalid)];
        reached(syscall(Call::CLOCK_SETTIME, args), &["EINVAL"])
    })
    .walled(EPERM),
    Probe::new("sethostname", Kernel, "seccomp", "Renames the host, with too long a name", |_| {
        reached(syscall(Call::SETHOSTNAME, &mut [Arg::Text("x"), Arg::Int(65)]), &["EINVAL"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new(
        "setdomainname",
        Kernel,
        "seccomp",
        "Renames the domain, with too long a name",
        |_| reached(syscall(Call::SETDOMAINNAME, &mut [Arg::Text("x"), Arg::Int(65)]), &["EINVAL"]),
    )
    .needs_root()
    .walled(EPERM),
    Probe::new("personality", Kernel, "seccomp", "Switches address randomness off", |_| {
        reached(syscall(Call::PERSONALITY, &mut [Arg::Int(0x004_0000)]), &[])
    })
    // Below strict debuggers may: the layout that it fixes is the program's own.
    .strict(EPERM),
    Probe::new("vmsplice", Kernel, "seccomp", "Gives its own pages to a pipe", |_| {
        reached(special::vmsplice().map(|()| 0), &[])
    })
    .walled(EPERM),
    Probe::new("fanotify", Kernel, "seccomp", "Watches every file of the host", |_| {
        reached(syscall(Call::FANOTIFY_INIT, &mut [Arg::Int(0), Arg::Int(0)]), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("int80", Kernel, "seccomp", "Calls the kernel by the 32-bit door", |_| {
        special::getpid_by_interrupt()?;
        Attempt::allowed("the call worked")
    })
    .walled(SIGSYS),
    Probe::new("x32", Kernel, "seccomp", "Calls the kernel by the x32 door", |_| {
        special::getpid_by_x32()?;
        Attempt::allowed("the call worked")
    })
    .walled(SIGSYS),
];
