"""The seccomp filter of sandboxed code: denied system calls as a classic BPF program.

It denies a list of calls, like container runtimes, and all calls newer than the known ones. It does not replace
namespaces: it removes kernel interfaces that exploits often need and model-written code does not."""

import errno
import os
import platform
import struct
from typing import NamedTuple

from nemo_gym.sandbox.contract import SandboxUnavailableError

_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16

NEWEST_KNOWN = 470
"""Calls above this number did not exist when the list was written. They are denied until they are reviewed."""

CLONE_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
IOPRIO_WHO_PROCESS = 1
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
"""Socket families that stay inside a network namespace. AF_VSOCK, for example, reaches the hypervisor."""


def numbers(table: str) -> dict[str, int]:
    """Parse a table of system calls, written as `name:number`."""
    return {name: int(number) for name, number in (entry.split(":") for entry in table.split())}


_SAME_EVERYWHERE = numbers(
    """
    pidfd_send_signal:424 io_uring_setup:425 io_uring_enter:426 io_uring_register:427 open_tree:428
    move_mount:429 fsopen:430 fsconfig:431 fsmount:432 fspick:433 pidfd_open:434 clone3:435 pidfd_getfd:438
    process_madvise:440 mount_setattr:442 quotactl_fd:443 memfd_secret:447 process_mrelease:448 statmount:457
    listmount:458 setxattrat:463 removexattrat:466 open_tree_attr:467 file_setattr:469
    """
)
_X86_64 = numbers(
    """
    socket:41 clone:56 ioctl:16 ptrace:101 syslog:103 uselib:134 personality:135 sysfs:139 vhangup:153
    modify_ldt:154 pivot_root:155 _sysctl:156 adjtimex:159 chroot:161 acct:163 settimeofday:164 mount:165
    umount2:166 swapon:167 swapoff:168 reboot:169 sethostname:170 setdomainname:171 iopl:172 ioperm:173
    init_module:175 delete_module:176 quotactl:179 lookup_dcookie:212 clock_settime:227 mbind:237
    set_mempolicy:238 kexec_load:246 add_key:248 request_key:249 keyctl:250 migrate_pages:256 unshare:272
    vmsplice:278 move_pages:279 perf_event_open:298 fanotify_init:300 name_to_handle_at:303
    open_by_handle_at:304 clock_adjtime:305 setns:308 process_vm_readv:310 process_vm_writev:311 kcmp:312
    finit_module:313 memfd_create:319 kexec_file_load:320 bpf:321 userfaultfd:323 shmget:29 shmat:30 msgget:68
    setpriority:141 sched_setparam:142 sched_setscheduler:144 sched_setaffinity:203 ioprio_set:251 prlimit64:302
    sched_setattr:314 chown:92 fchown:93 lchown:94 fchownat:260 setxattr:188 lsetxattr:189 fsetxattr:190
    removexattr:197 lremovexattr:198 fremovexattr:199
    """
)
_AARCH64 = numbers(
    """
    socket:198 clone:220 ioctl:29 ptrace:117 syslog:116 personality:92 vhangup:58 pivot_root:41 adjtimex:171
    chroot:51 acct:89 settimeofday:170 mount:40 umount2:39 swapon:224 swapoff:225 reboot:142 sethostname:161
    setdomainname:162 init_module:105 delete_module:106 quotactl:60 lookup_dcookie:18 clock_settime:112
    mbind:235 set_mempolicy:237 kexec_load:104 add_key:217 request_key:218 keyctl:219 migrate_pages:238
    unshare:97 vmsplice:75 move_pages:239 perf_event_open:241 fanotify_init:262 name_to_handle_at:264
    open_by_handle_at:265 clock_adjtime:266 setns:268 process_vm_readv:270 process_vm_writev:271 kcmp:272
    finit_module:273 memfd_create:279 kexec_file_load:294 bpf:280 userfaultfd:282 shmget:194 shmat:196
    msgget:186 setpriority:140 sched_setparam:118 sched_setscheduler:119 sched_setaffinity:122 ioprio_set:30
    prlimit64:261 sched_setattr:274 fchown:55 fchownat:54 setxattr:5 lsetxattr:6 fsetxattr:7 removexattr:14
    lremovexattr:15 fremovexattr:16
    """
)
_ABSENT = {
    # Programs probe for these and fall back if the kernel has none. Memory that no limit counts (memfd, SysV
    # segments and queues) is refused the same way.
    *("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret"),
    *("shmget", "shmat", "msgget", "pidfd_open", "pidfd_send_signal"),
}
_ON_OTHER_FILES = {
    # Landlock has no right for these, and a filter sees no paths. What programs do where a file system has no extended
    # attributes, or another user owns a file, they do here. chmod and utime are not among them: copying needs them.
    **dict.fromkeys(("chown", "fchown", "lchown", "fchownat"), errno.EPERM),
    **dict.fromkeys(("setxattr", "lsetxattr", "fsetxattr", "setxattrat"), errno.EOPNOTSUPP),
    **dict.fromkeys(("removexattr", "lremovexattr", "fremovexattr", "removexattrat"), errno.EOPNOTSUPP),
    "file_setattr": errno.EOPNOTSUPP,
}
_BY_ARGUMENT = {"socket", "clone", "ioctl"}
_CALLER = 0
"""The process id that means the caller, the only one that a filter can check."""
_ON_ITSELF_ONLY = {
    # Call to the arguments that it must have, by position: so a process changes itself and no other.
    "prlimit64": {0: _CALLER},
    "sched_setparam": {0: _CALLER},
    "sched_setscheduler": {0: _CALLER},
    "sched_setaffinity": {0: _CALLER},
    "sched_setattr": {0: _CALLER},
    "setpriority": {0: os.PRIO_PROCESS, 1: _CALLER},
    "ioprio_set": {0: IOPRIO_WHO_PROCESS, 1: _CALLER},
}


class Machine(NamedTuple):
    audit_arch: int
    calls: dict[str, int]


MACHINES = {
    "x86_64": Machine(0xC000003E, {**_X86_64, **_SAME_EVERYWHERE}),
    "aarch64": Machine(0xC00000B7, {**_AARCH64, **_SAME_EVERYWHERE}),
}


def seccomp_filter(*, in_namespaces: bool, machine: str | None = None) -> bytes:
    """Return the filter program. Without namespaces it also denies sockets, except socketpair, and changes of owners
    and extended attributes."""
    name = machine or platform.machine()
    if name not in MACHINES:
        raise SandboxUnavailableError(f"There is no seccomp filter for {name}; expected {' or '.join(MACHINES)}.")
    audit_arch, calls = MACHINES[name]
    lines = [_load(_ARCH_AT), _jump(_JEQ, audit_arch, 1, 0), _return(_KILL_PROCESS), _load(_NUMBER_AT)]
    lines += [_jump(_JGE, NEWEST_KNOWN + 1, 0, 1), _return(_ERRNO | errno.ENOSYS)]
    for call, number in calls.items():
        if call in _ON_ITSELF_ONLY:
            lines += _on_itself_only(number, _ON_ITSELF_ONLY[call])
        elif call not in _BY_ARGUMENT and not (in_namespaces and call in _ON_OTHER_FILES):
            refusal = errno.ENOSYS if call in _ABSENT else _ON_OTHER_FILES.get(call, errno.EPERM)
            lines += [_jump(_JEQ, number, 0, 1), _return(_ERRNO | refusal)]
    lines += _when(calls["clone"], 0, [_jump(_JSET, CLONE_NEW_NAMESPACES, 0, 1), _return(_ERRNO | errno.EPERM)])
    terminal = [
        line for code in (TIOCSTI, TIOCLINUX) for line in (_jump(_JEQ, code, 0, 1), _return(_ERRNO | errno.EPERM))
    ]
    lines += _when(calls["ioctl"], 1, terminal)
    lines += _when(calls["socket"], 0, _socket_rules(in_namespaces))
    return b"".join([*lines, _return(_ALLOW)])


def _socket_rules(in_namespaces: bool) -> list[bytes]:
    if not in_namespaces:
        return [_return(_ERRNO | errno.EACCES)]
    families = (AF_UNIX, AF_INET, AF_INET6)
    allowed = [line for family in families for line in (_jump(_JEQ, family, 0, 1), _return(_ALLOW))]
    return [*allowed, _return(_ERRNO | errno.EAFNOSUPPORT)]


def _on_itself_only(number: int, required: dict[int, int]) -> list[bytes]:
    refuse = _return(_ERRNO | errno.EPERM)
    checks = [
        line
        for at, value in required.items()
        for line in (_load(_ARGUMENTS_AT + 8 * at), _jump(_JEQ, value, 1, 0), refuse)
    ]
    return [_jump(_JEQ, number, 0, len(checks) + 1), *checks, _return(_ALLOW)]


def _when(number: int, argument: int, rules: list[bytes]) -> list[bytes]:
    """Apply rules to the low half of one argument of one call. Other calls skip them."""
    block = [_load(_ARGUMENTS_AT + 8 * argument), *rules, _return(_ALLOW)]
    return [_jump(_JEQ, number, 0, len(block)), *block]


def _load(offset: int) -> bytes:
    return struct.pack("=HBBI", _LD, 0, 0, offset)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _return(value: int) -> bytes:
    return struct.pack("=HBBI", _RET, 0, 0, value)
