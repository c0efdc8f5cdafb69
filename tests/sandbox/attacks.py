"""Attacks on a sandbox, by what they want. Each is a Python program that prints `ESCAPED` if it gets it."""

PRELUDE = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *args):
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    return result, ctypes.get_errno()
def escaped(what):
    print("ESCAPED", what, flush=True)
def attempt(function, *args):
    try:
        result = function(*args)
    except (OSError, ValueError, MemoryError) as error:
        return None
    escaped(repr(result)[:200])
def names_in(folder):
    found = [name for name in os.listdir(folder) if not f"{sys.base_prefix}/".startswith(f"{folder}/{name}/")]
    if not found:
        raise OSError("nothing but the interpreter's own folder")
    return found
"""


READS = {
    "a secret file": "attempt(lambda: open(sys.argv[1]).read())",
    "a secret through a link": "os.symlink(sys.argv[1], 'link'); attempt(lambda: open('link').read())",
    "a secret through a hard link": "attempt(lambda: os.link(sys.argv[1], 'hard') or open('hard').read())",
    "the folder of the secret": "attempt(os.listdir, os.path.dirname(sys.argv[1]))",
    "a secret through /proc/1/root": "attempt(lambda: open('/proc/1/root' + sys.argv[1]).read())",
    "a secret through /proc/self/root": "attempt(lambda: open('/proc/self/root/../..' + sys.argv[1]).read())",
    "a secret through the parent's folder": "attempt(lambda: open(f'/proc/{os.getppid()}/cwd' + sys.argv[1]).read())",
    "a secret through dots": "attempt(lambda: open('../' * 30 + sys.argv[1].lstrip('/')).read())",
    "password hashes": "attempt(lambda: open('/etc/shadow').read())",
    "accounts of the host": """
        attempt(lambda: [line for line in open('/etc/passwd') if 'sandbox' not in line and 'nobody' not in line
                         and 'root' not in line] or open('/nothing'))
    """,
    "the kernel's log": "attempt(lambda: os.read(os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK), 100))",
    "physical memory": "attempt(lambda: open('/dev/mem', 'rb').read(16))",
    "a raw disk": """
        for name in ('vda', 'sda', 'nvme0n1', 'xvda', 'dm-0', 'loop0'):
            attempt(lambda: open(f'/dev/{name}', 'rb').read(16))
    """,
    "a raw disk through a node of its own": """
        import stat
        attempt(lambda: os.mknod('disk', stat.S_IFBLK | 0o666, os.makedev(254, 0)) or open('disk', 'rb').read(16))
    """,
    "the home folder of root": """
        attempt(names_in, '/root')
    """,
    "/home, /var, /run, /srv, /mnt, /sys": """
        for path in ('/home', '/var', '/run', '/srv', '/mnt', '/opt', '/media', '/sys', '/boot'):
            attempt(names_in, path)
    """,
    "open files it was given": """
        for fd in range(3, 64):
            try:
                os.fstat(fd)
            except OSError:
                continue
            escaped(fd)
    """,
    "the host's environment": """
        import glob
        for path in ['/proc/self/environ', *glob.glob('/proc/[0-9]*/environ')]:
            try:
                content = open(path, 'rb').read()
            except OSError:
                continue
            if b'canary' in content or b'PYTEST' in content:
                escaped(path)
        if 'PYTEST_CURRENT_TEST' in os.environ:
            escaped('environ')
    """,
    "a file by its handle": """
        buffer = ctypes.create_string_buffer(bytes([128, 0, 0, 0]) + bytes(140))
        mount = ctypes.c_int()
        number = {'x86_64': (303, 304), 'aarch64': (264, 265)}[os.uname().machine]
        if syscall(number[0], -100, b'/usr', buffer, ctypes.byref(mount), 0)[0] == 0:
            if syscall(number[1], os.open('/usr', 0), buffer, 0)[0] >= 0:
                escaped('handle')
    """,
}

WRITES = {
    "a file of the host": "attempt(lambda: open(sys.argv[1], 'w').write('x'))",
    "a new file beside it": "attempt(lambda: open(sys.argv[1] + '.new', 'w').write('x'))",
    "through a link": "os.symlink(sys.argv[1], 'link'); attempt(lambda: open('link', 'w').write('x'))",
    "system folders": """
        for path in ('/usr/x', '/usr/local/bin/x', '/etc/x', '/bin/x', '/lib/x', '/x', '/root/x', '/dev/x'):
            attempt(lambda: open(path, 'w').write('x'))
    """,
    "the interpreter": "attempt(lambda: open(os.path.realpath(sys.executable), 'r+b').read(1))",
    "kernel settings": """
        for path in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/proc/sys/vm/drop_caches'):
            attempt(lambda: os.write(os.open(path, os.O_WRONLY), b'x'))
    """,
    "deleting": "attempt(os.unlink, sys.argv[1])",
    "renaming": "attempt(os.rename, sys.argv[1], sys.argv[1] + '.moved')",
    "truncating": "attempt(os.truncate, sys.argv[1], 0)",
    "changing rights": "attempt(os.chmod, sys.argv[1], 0o777)",
    "changing times": "attempt(os.utime, sys.argv[1], (1, 1))",
    "changing the owner": """
        attempt(lambda: os.chown(sys.argv[1], os.getuid(), os.getgid()) or 'owner')
        attempt(lambda: os.fchown(os.open(sys.argv[1], os.O_RDONLY), -1, os.getgid()) or 'group')
        attempt(lambda: os.chown('', -1, os.getgid(), dir_fd=os.open(sys.argv[1], os.O_PATH)) or 'group')
    """,
    "extended attributes": """
        attempt(lambda: os.setxattr(sys.argv[1], 'user.mark', b'x') or 'mark')
        os.symlink(sys.argv[1], 'link')
        attempt(lambda: os.setxattr('link', 'user.mark', b'x') or 'mark')
        attempt(lambda: os.setxattr(sys.executable, 'user.mark', b'x') or 'mark')
    """,
}

# name: (x86_64, aarch64, arguments)
CALLS = {
    "mount": (165, 40, ("b'none'", "b'/tmp'", "b'tmpfs'", "0", "0")),
    "umount2": (166, 39, ("b'/usr'", "2")),
    "pivot_root": (155, 41, ("b'.'", "b'.'")),
    "chroot": (161, 51, ("b'.'",)),
    "unshare user": (272, 97, ("0x10000000",)),
    "unshare mount": (272, 97, ("0x00020000",)),
    "unshare network": (272, 97, ("0x40000000",)),
    "setns": (308, 268, ("0", "0")),
    "clone into a user namespace": (56, 220, ("0x10000000 | 17", "0", "0", "0", "0")),
    "clone3": (435, 435, ("0", "0")),
    "fsopen": (430, 430, ("b'tmpfs'", "0")),
    "open_tree": (428, 428, ("-100", "b'/'", "1")),
    "move_mount": (429, 429, ("0", "b''", "0", "b''", "0")),
    "ptrace attach": (101, 117, ("16", "os.getppid()", "0", "0")),
    "process_vm_readv": (310, 270, ("os.getppid()", "0", "0", "0", "0", "0")),
    "process_vm_writev": (311, 271, ("os.getppid()", "0", "0", "0", "0", "0")),
    "process_madvise": (440, 440, ("0", "0", "0", "4", "0")),
    "process_mrelease": (448, 448, ("0", "0")),
    "migrate_pages": (256, 238, ("os.getppid()", "0", "0", "0")),
    "move_pages": (279, 239, ("os.getppid()", "0", "0", "0", "0", "0")),
    "pidfd_open": (434, 434, ("os.getpid()", "0")),
    "pidfd_send_signal": (424, 424, ("0", "0", "0", "0")),
    "pidfd_getfd": (438, 438, ("0", "0", "0")),
    "the limits of another process": (302, 261, ("os.getppid()", "7", "0", "ctypes.create_string_buffer(16)")),
    "limits for another process": (302, 261, ("os.getppid()", "4", "(ctypes.c_ulong * 2)(0, 0)", "0")),
    "the affinity of another process": (203, 122, ("os.getppid()", "8", "ctypes.create_string_buffer(b'\\xff' * 8)")),
    "the priority of another process": (141, 140, ("0", "os.getppid()", "19")),
    "the priority of a process group": (141, 140, ("1", "0", "19")),
    "the priority of all processes of the user": (141, 140, ("2", "0", "0")),
    "the priority of all processes of a named user": (141, 140, ("2", "os.getuid()", "0")),
    "the I/O priority of another process": (251, 30, ("1", "os.getppid()", "0x6000")),
    "the I/O priority of a process group": (251, 30, ("2", "0", "0x6000")),
    "the I/O priority of all processes of the user": (251, 30, ("3", "0", "0x4004")),
    "the scheduler of another process": (144, 119, ("os.getppid()", "5", "(ctypes.c_int * 1)(0)")),
    "scheduling parameters of another process": (142, 118, ("os.getppid()", "(ctypes.c_int * 1)(0)")),
    "scheduling attributes of another process": (314, 274, ("os.getppid()", "(ctypes.c_uint * 14)(48, 5)", "0")),
    "add_key": (248, 217, ("b'user'", "b'x'", "b'y'", "1", "-3")),
    "keyctl": (250, 219, ("0", "-3", "1")),
    "request_key": (249, 218, ("b'user'", "b'x'", "0", "0")),
    "io_uring_setup": (425, 425, ("1", "ctypes.create_string_buffer(120)")),
    "bpf": (321, 280, ("0", "0", "0")),
    "perf_event_open": (298, 241, ("ctypes.create_string_buffer(120)", "0", "-1", "-1", "0")),
    "userfaultfd": (323, 282, ("1",)),
    "memfd_create": (319, 279, ("b'x'", "0")),
    "shmget": (29, 194, ("0", "4096", "0o1600")),
    "msgget": (68, 186, ("0", "0o1600")),
    "init_module": (175, 105, ("0", "0", "b''")),
    "finit_module": (313, 273, ("0", "b''", "0")),
    "kexec_load": (246, 104, ("0", "0", "0", "0")),
    "reboot": (169, 142, ("0", "0", "0", "0")),
    "swapon": (167, 224, ("b'x'", "0")),
    "acct": (163, 89, ("0",)),
    "sethostname": (170, 161, ("b'x'", "1")),
    "clock_settime": (227, 112, ("0", "0")),
    "fanotify_init": (300, 262, ("0", "0")),
    "personality": (135, 92, ("0x0040000",)),
    "syslog": (103, 116, ("3", "ctypes.create_string_buffer(100)", "100")),
    "quotactl": (179, 60, ("0", "0", "0", "0")),
    "kcmp": (312, 272, ("os.getpid()", "os.getpid()", "0", "0", "0")),
    "a call that does not exist yet": (999, 999, ()),
}

PRIVILEGES = {
    "becoming root": "attempt(os.setuid, 0) if os.getuid() else None",
    "capabilities": """
        try:
            status = open('/proc/self/status').read()
        except OSError:
            status = ''
        for line in status.splitlines():
            if line.startswith(('CapEff', 'CapPrm')) and int(line.split()[1], 16):
                escaped(line)
        if libc.prctl(39, 0, 0, 0, 0) != 1:
            escaped('new privileges')
    """,
    "a set-user-id program": """
        import subprocess
        os.system('cp /usr/bin/id ./id; chmod u+s,g+s ./id')
        for program in ('./id', '/usr/bin/su', '/usr/bin/mount', '/usr/bin/passwd'):
            before = os.getuid()
            out = subprocess.run([program, '-u'] if program == './id' else [program, '--version'], capture_output=True)
            if program == './id' and out.stdout.strip() not in (str(before).encode(), b''):
                escaped(out.stdout)
    """,
    "raising limits": """
        import resource
        for name in ('RLIMIT_NOFILE', 'RLIMIT_DATA', 'RLIMIT_FSIZE', 'RLIMIT_CPU', 'RLIMIT_CORE'):
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            attempt(lambda: resource.setrlimit(number, (hard + 1, hard + 1)) or name)
    """,
    "priority": """
        attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, -10) or 'nice')
        attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10)) or 'real time')
    """,
    "typing into a terminal": """
        import fcntl
        for fd in (0, 1, 2):
            attempt(lambda: fcntl.ioctl(fd, 0x5412, b'x'))
    """,
}

NETWORK = {
    "a server on the host's loopback": "attempt(lambda: socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2))",
    "it by IPv6": "attempt(lambda: socket.create_connection(('::1', int(sys.argv[1])), 2))",
    "it by UDP": """
        def send():
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.connect(('127.0.0.1', int(sys.argv[1])))
            udp.send(b'x'); udp.send(b'x')
        attempt(lambda: send() or 'sent')
    """,
    "the internet": "attempt(lambda: socket.create_connection(('192.0.2.1', 80), 2))",
    "a name server": "attempt(socket.getaddrinfo, 'example.com', 80)",
    "a Unix socket": "s = None\nattempt(lambda: socket.socket(socket.AF_UNIX).connect(sys.argv[2]) or 'connected')",
    "an abstract Unix socket": """
        attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0' + sys.argv[3]) or 'connected')
    """,
    "the Docker daemon": """
        attempt(lambda: socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock') or 'connected')
    """,
    "netlink": "attempt(lambda: socket.socket(16, socket.SOCK_RAW, 0))",
    "the hypervisor (vsock)": "attempt(lambda: socket.socket(40, socket.SOCK_STREAM))",
    "raw packets": "attempt(lambda: socket.socket(17, socket.SOCK_RAW, 3))",
    "raw IP": "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
    "the kernel's crypto (AF_ALG)": "attempt(lambda: socket.socket(38, socket.SOCK_SEQPACKET))",
    "Bluetooth": "attempt(lambda: socket.socket(31, socket.SOCK_RAW, 1))",
}

MEMORY = {
    "one process": "keep = [bytearray(2**20) for _ in range(2000)]; escaped('memory')",
    "one mapping": "import mmap; m = mmap.mmap(-1, 2**33); escaped('mapped 8 GiB')",
    "a shared mapping": """
        import mmap, time
        m = mmap.mmap(-1, 2**30)
        for at in range(0, 2**30, 4096):
            m[at] = 1
        time.sleep(10)
        escaped('memory')
    """,
    "several processes": """
        import time
        for _ in range(8):
            if not os.fork():
                keep = bytearray(150 * 2**20)
                for at in range(0, len(keep), 4096): keep[at] = 1
                time.sleep(10)
                escaped('memory')
                os._exit(0)
        for _ in range(8): os.wait()
    """,
    "shared memory": "attempt(lambda: open('/dev/shm/x', 'wb').write(bytes(300 * 2**20)))",
}

DISK = {
    "one file": "attempt(lambda: open('big', 'wb').write(bytes(17 * 2**20)))",
    "several files": """
        import time
        for n in range(40):
            try:
                open(f'big{n}', 'wb').write(bytes(2**20))
            except OSError:
                sys.exit()
        time.sleep(10)
        escaped('40 MB in 16')
    """,
    "the temporary folder": """
        import time
        for n in range(40):
            try:
                open(f"{os.environ['TMPDIR']}/big{n}", 'wb').write(bytes(2**20))
            except OSError:
                sys.exit()
        time.sleep(10)
        escaped('40 MB in 16')
    """,
    "files in a folder that nobody may read": """
        import time
        os.mkdir('hidden')
        os.chmod('hidden', 0o300)
        for n in range(40):
            try:
                open(f'hidden/big{n}', 'wb').write(bytes(2**20))
            except OSError:
                sys.exit()
        time.sleep(10)
        escaped('40 MB in 16')
    """,
    "files below a path that is too long": """
        import time
        for _ in range(30):
            os.mkdir('x' * 200)
            os.chdir('x' * 200)
        for n in range(40):
            try:
                open(f'big{n}', 'wb').write(bytes(2**20))
            except OSError:
                sys.exit()
        time.sleep(10)
        escaped('40 MB in 16')
    """,
    "files without a name": """
        import time
        files = []
        for n in range(40):
            try:
                files.append(open(f'big{n}', 'wb', buffering=0))
                os.unlink(f'big{n}')
                files[-1].write(bytes(2**20))
            except OSError:
                sys.exit()
        time.sleep(10)
        escaped('40 MB in 16')
    """,
    "files without a name of a process that lets nobody look": """
        import ctypes, time
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        files = []
        for n in range(40):
            try:
                files.append(open(f'big{n}', 'wb', buffering=0))
                os.unlink(f'big{n}')
                files[-1].write(bytes(2**20))
            except OSError:
                sys.exit()
        time.sleep(10)
        escaped('40 MB in 16')
    """,
    "many empty files": """
        import time
        for n in range(20000):
            try:
                open(f'empty{n}', 'wb').close()
            except OSError:
                sys.exit()
        time.sleep(10)
        escaped('20000 files')
    """,
    "a sparse file": "attempt(lambda: os.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 2**40) or 'sparse')",
}
