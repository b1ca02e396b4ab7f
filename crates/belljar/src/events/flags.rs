//! The kernel's names for the numbers in arguments. All are the same on x86_64 and aarch64, unless said.

use super::shapes::Names;

pub(super) const MOUNT: Names = &[
    (1, "MS_RDONLY"),
    (2, "MS_NOSUID"),
    (4, "MS_NODEV"),
    (8, "MS_NOEXEC"),
    (16, "MS_SYNCHRONOUS"),
    (32, "MS_REMOUNT"),
    (1024, "MS_NOATIME"),
    (4096, "MS_BIND"),
    (8192, "MS_MOVE"),
    (16384, "MS_REC"),
    (1 << 17, "MS_UNBINDABLE"),
    (1 << 18, "MS_PRIVATE"),
    (1 << 19, "MS_SLAVE"),
    (1 << 20, "MS_SHARED"),
    (1 << 21, "MS_RELATIME"),
];

pub(super) const UMOUNT: Names =
    &[(1, "MNT_FORCE"), (2, "MNT_DETACH"), (4, "MNT_EXPIRE"), (8, "UMOUNT_NOFOLLOW")];

pub(super) const OPEN_TREE: Names = &[
    (1, "OPEN_TREE_CLONE"),
    (0x80000, "OPEN_TREE_CLOEXEC"),
    (0x1000, "AT_EMPTY_PATH"),
    (0x8000, "AT_RECURSIVE"),
];

pub(super) const MOVE_MOUNT: Names = &[
    (1, "MOVE_MOUNT_F_SYMLINKS"),
    (4, "MOVE_MOUNT_F_EMPTY_PATH"),
    (0x10, "MOVE_MOUNT_T_SYMLINKS"),
    (0x40, "MOVE_MOUNT_T_EMPTY_PATH"),
];

pub(super) const MOUNT_ATTRIBUTES: Names = &[
    (1, "MOUNT_ATTR_RDONLY"),
    (2, "MOUNT_ATTR_NOSUID"),
    (4, "MOUNT_ATTR_NODEV"),
    (8, "MOUNT_ATTR_NOEXEC"),
];

pub(super) const FSCONFIG: Names = &[
    (0, "FSCONFIG_SET_FLAG"),
    (1, "FSCONFIG_SET_STRING"),
    (2, "FSCONFIG_SET_BINARY"),
    (3, "FSCONFIG_SET_PATH"),
    (5, "FSCONFIG_SET_FD"),
    (6, "FSCONFIG_CMD_CREATE"),
    (7, "FSCONFIG_CMD_RECONFIGURE"),
];

pub(super) const CLONE: Names = &[
    (0x80, "CLONE_NEWTIME"),
    (0x100, "CLONE_VM"),
    (0x200, "CLONE_FS"),
    (0x400, "CLONE_FILES"),
    (0x800, "CLONE_SIGHAND"),
    (0x4000, "CLONE_VFORK"),
    (0x8000, "CLONE_PARENT"),
    (0x10000, "CLONE_THREAD"),
    (0x20000, "CLONE_NEWNS"),
    (0x40000, "CLONE_SYSVSEM"),
    (0x0200_0000, "CLONE_NEWCGROUP"),
    (0x0400_0000, "CLONE_NEWUTS"),
    (0x0800_0000, "CLONE_NEWIPC"),
    (0x1000_0000, "CLONE_NEWUSER"),
    (0x2000_0000, "CLONE_NEWPID"),
    (0x4000_0000, "CLONE_NEWNET"),
];

pub(super) const PTRACE: Names = &[
    (0, "PTRACE_TRACEME"),
    (1, "PTRACE_PEEKTEXT"),
    (2, "PTRACE_PEEKDATA"),
    (4, "PTRACE_POKETEXT"),
    (5, "PTRACE_POKEDATA"),
    (7, "PTRACE_CONT"),
    (16, "PTRACE_ATTACH"),
    (17, "PTRACE_DETACH"),
    (24, "PTRACE_SYSCALL"),
    (0x4206, "PTRACE_SEIZE"),
];

pub(super) const PERSONALITIES: Names = &[
    (0x0002_0000, "UNAME26"),
    (0x0004_0000, "ADDR_NO_RANDOMIZE"),
    (0x0010_0000, "MMAP_PAGE_ZERO"),
    (0x0020_0000, "ADDR_COMPAT_LAYOUT"),
    (0x0040_0000, "READ_IMPLIES_EXEC"),
    (0x0080_0000, "ADDR_LIMIT_32BIT"),
    (0x0800_0000, "ADDR_LIMIT_3GB"),
    (8, "PER_LINUX32"),
];

pub(super) const PRCTL: Names = &[
    (4, "PR_SET_DUMPABLE"),
    (8, "PR_SET_KEEPCAPS"),
    (24, "PR_CAPBSET_DROP"),
    (28, "PR_SET_SECUREBITS"),
    (35, "PR_SET_MM"),
    (53, "PR_SET_SPECULATION_CTRL"),
    (59, "PR_SET_SYSCALL_USER_DISPATCH"),
    (62, "PR_SCHED_CORE"),
    (67, "PR_SET_MEMORY_MERGE"),
    (0x59616d61, "PR_SET_PTRACER"),
];

pub(super) const SCHEDULERS: Names = &[
    (0, "SCHED_OTHER"),
    (1, "SCHED_FIFO"),
    (2, "SCHED_RR"),
    (3, "SCHED_BATCH"),
    (5, "SCHED_IDLE"),
    (6, "SCHED_DEADLINE"),
];

/// Those whose bits are the same everywhere; O_DIRECTORY and its neighbours are not.
pub(super) const OPEN: Names = &[
    (1, "O_WRONLY"),
    (2, "O_RDWR"),
    (0o100, "O_CREAT"),
    (0o200, "O_EXCL"),
    (0o1000, "O_TRUNC"),
    (0o2000, "O_APPEND"),
    (0o4000, "O_NONBLOCK"),
    (0o200_0000, "O_CLOEXEC"),
    (0o1000_0000, "O_PATH"),
];

pub(super) const ACCESS: Names = &[(1, "X_OK"), (2, "W_OK"), (4, "R_OK")];

pub(super) const FILE_TYPES: Names = &[
    (0o010_000, "fifo"),
    (0o020_000, "character device"),
    (0o060_000, "block device"),
    (0o100_000, "file"),
    (0o140_000, "socket"),
];

pub(super) const IOCTLS: Names = &[
    (0x5412, "TIOCSTI"),
    (0x541c, "TIOCLINUX"),
    (0x541d, "TIOCCONS"),
    (0x5423, "TIOCSETD"),
    (0x541f, "TIOCSSERIAL"),
    (0x5437, "TIOCVHANGUP"),
    (0x4008_6602, "FS_IOC_SETFLAGS"),
    (0x401c_5820, "FS_IOC_FSSETXATTR"),
    (0xc018_9436, "FIDEDUPERANGE"),
    (0xae00, "KVM_GET_API_VERSION"),
    (0xae01, "KVM_CREATE_VM"),
    (0xb701, "NS_GET_USERNS"),
    (0xb702, "NS_GET_PARENT"),
];

pub(super) const MODULE: Names = &[
    (1, "MODULE_INIT_IGNORE_MODVERSIONS"),
    (2, "MODULE_INIT_IGNORE_VERMAGIC"),
    (4, "MODULE_INIT_COMPRESSED_FILE"),
];

pub(super) const REBOOT: Names = &[
    (0x0123_4567, "LINUX_REBOOT_CMD_RESTART"),
    (0xcdef_0123, "LINUX_REBOOT_CMD_HALT"),
    (0x4321_fedc, "LINUX_REBOOT_CMD_POWER_OFF"),
    (0x89ab_cdef, "LINUX_REBOOT_CMD_CAD_ON"),
    (0, "LINUX_REBOOT_CMD_CAD_OFF"),
];

/// The command stands above eight bits of a kind of quota.
pub(super) const QUOTA: Names = &[(0x8000_0200, "Q_QUOTAON"), (0x8000_0300, "Q_QUOTAOFF")];

pub(super) const SYSLOG: Names =
    &[(2, "READ"), (3, "READ_ALL"), (4, "READ_CLEAR"), (5, "CLEAR"), (10, "SIZE_BUFFER")];

pub(super) const CLOCKS: Names =
    &[(0, "CLOCK_REALTIME"), (1, "CLOCK_MONOTONIC"), (11, "CLOCK_TAI")];

pub(super) const BPF: Names = &[
    (0, "BPF_MAP_CREATE"),
    (1, "BPF_MAP_LOOKUP_ELEM"),
    (5, "BPF_PROG_LOAD"),
    (6, "BPF_OBJ_PIN"),
    (8, "BPF_PROG_ATTACH"),
    (17, "BPF_RAW_TRACEPOINT_OPEN"),
    (18, "BPF_BTF_LOAD"),
    (28, "BPF_LINK_CREATE"),
];

pub(super) const KEYCTL: Names = &[
    (0, "KEYCTL_GET_KEYRING_ID"),
    (1, "KEYCTL_JOIN_SESSION_KEYRING"),
    (2, "KEYCTL_UPDATE"),
    (3, "KEYCTL_REVOKE"),
    (6, "KEYCTL_DESCRIBE"),
    (8, "KEYCTL_LINK"),
    (10, "KEYCTL_SEARCH"),
    (11, "KEYCTL_READ"),
];

pub(super) const ADDRESS_FAMILIES: Names = &[
    (0, "AF_UNSPEC"),
    (1, "AF_UNIX"),
    (2, "AF_INET"),
    (10, "AF_INET6"),
    (15, "AF_KEY"),
    (16, "AF_NETLINK"),
    (17, "AF_PACKET"),
    (21, "AF_RDS"),
    (29, "AF_CAN"),
    (30, "AF_TIPC"),
    (31, "AF_BLUETOOTH"),
    (38, "AF_ALG"),
    (40, "AF_VSOCK"),
    (43, "AF_SMC"),
    (44, "AF_XDP"),
];

/// The low four bits are one value, but no two of these share one with a bit of another.
pub(super) const SOCKET_TYPES: Names = &[
    (0x800, "SOCK_NONBLOCK"),
    (0x80000, "SOCK_CLOEXEC"),
    (5, "SOCK_SEQPACKET"),
    (3, "SOCK_RAW"),
    (2, "SOCK_DGRAM"),
    (1, "SOCK_STREAM"),
];
