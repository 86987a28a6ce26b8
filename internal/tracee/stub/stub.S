# The stub: the only code of sandtree's that runs among a sandbox's processes.
#
# It is a batch loop and two ways to wait for a batch. generate.sh assembles it
# and writes the bytes and the offsets of its labels to ../stub_amd64.go.
#
# A batch is an array of operations of 64 bytes:
#
#     0  system call number, with the bits FORK, TRY and COPY
#     8  six arguments
#    56  result
#
# Registers while it runs:
#
#     rbx  the next operation          r12  how many are left
#     r13  not 0: FORK                 r14  not 0: TRY
#     r15  what comes after the last operation, one of the END_ numbers
#
# The loop uses no stack and no address of its own, so that it also runs where
# it was injected into another program. Only `serve` and `_start` know the
# stub's data area, whose addresses area.go has too.

        .equ END_TRAP,  0               # int3: the tracer takes over
        .equ END_SERVE, 1               # report, and wait for the next batch
        .equ END_EXIT,  2               # exit with status 125
        .equ END_PARK,  4               # sleep for ever

        .equ POLL,   0x200000201000     # struct pollfd[2]: control socket, signalfd
        .equ REQ,    0x200000201010     # request: address of operations, count
        .equ MSG,    0x200000201020     # report: pid (0: a batch has ended), status
        .equ SIG,    0x200000201040     # struct signalfd_siginfo
        .equ QUIET,  0x2000002010c0     # not 0: children are reaped without a report
        .equ MASK,   0x2000002010c8     # a signal set

        .equ CTL, 100                   # the control socket's descriptor
        .equ SFD, 101                   # the signalfd's

        .globl _start, park, batch, serve
_start:
        # All signals are blocked for good: one would end a batch in its middle.
        mov     $MASK, %rsi
        movq    $-1, (%rsi)
        mov     $2, %edi                # SIG_SETMASK
        xor     %edx, %edx
        mov     $8, %r10d
        mov     $14, %eax               # rt_sigprocmask
        syscall
        mov     $4, %edi                # PR_SET_DUMPABLE
        xor     %esi, %esi
        mov     $157, %eax              # prctl
        syscall
        xor     %edi, %edi              # descriptor 0 is the control socket
        mov     $CTL, %esi
        mov     $0x80000, %edx          # O_CLOEXEC
        mov     $292, %eax              # dup3
        syscall
        xor     %edi, %edi
        mov     $CTL-1, %esi
        xor     %edx, %edx
        mov     $436, %eax              # close_range
        syscall
        mov     $CTL+1, %edi
        mov     $-1, %esi
        xor     %edx, %edx
        mov     $436, %eax
        syscall
        mov     $MASK, %rsi
        movq    $0x10000, (%rsi)        # SIGCHLD
        mov     $-1, %edi
        mov     $8, %edx
        mov     $0x80800, %r10d         # SFD_CLOEXEC | SFD_NONBLOCK
        mov     $289, %eax              # signalfd4
        syscall
        mov     %eax, %edi
        mov     $SFD, %esi
        mov     $0x80000, %edx
        mov     $292, %eax
        syscall
        mov     $3, %eax                # close
        syscall
        mov     $POLL, %rdi
        movl    $CTL, (%rdi)
        movl    $1, 4(%rdi)             # POLLIN
        movl    $SFD, 8(%rdi)
        movl    $1, 12(%rdi)
        mov     $QUIET, %rdi
        movl    $1, (%rdi)
        jmp     report

        .balign 16
park:   mov     $34, %eax               # pause
        syscall
        jmp     park

        .balign 16
batch:  cld
next:   test    %r12, %r12
        jz      end
        mov     (%rbx), %rax
        btr     $63, %rax               # FORK
        sbb     %r13, %r13
        btr     $62, %rax               # TRY
        sbb     %r14, %r14
        bt      $61, %rax               # COPY
        jc      copy
        mov     8(%rbx), %rdi
        mov     16(%rbx), %rsi
        mov     24(%rbx), %rdx
        mov     32(%rbx), %r10
        mov     40(%rbx), %r8
        mov     48(%rbx), %r9
        syscall
        mov     %rax, 56(%rbx)
        test    %r13, %r13
        jz      check
        test    %rax, %rax
        jnz     check
        # We are the child: go on at operations a4, of which there are a5;
        # the upper half of a5 tells how they end.
        mov     48(%rbx), %r12
        mov     40(%rbx), %rbx
        mov     %r12, %r15
        shr     $32, %r15
        mov     %r12d, %r12d
        jmp     next
check:  cmp     $-4095, %rax
        jae     failed
step:   add     $64, %rbx
        dec     %r12
        jmp     next
failed: test    %r14, %r14
        jnz     step
end:    cmp     $END_SERVE, %r15d
        je      report
        cmp     $END_EXIT, %r15d
        je      bail
        cmp     $END_PARK, %r15d
        je      park
trap:   int3
        jmp     trap
copy:   mov     8(%rbx), %rsi
        mov     16(%rbx), %rdi
        mov     24(%rbx), %rcx
        rep movsb
        jmp     step
bail:   mov     $231, %eax              # exit_group
        mov     $125, %edi
        syscall

        # A forked child that is to serve comes here too: its report is its
        # hello. Until then it may still read the operation that cloned it, so
        # its supervisor must not write into the operations' memory.
        .balign 16
report: mov     $MSG, %rsi
        movq    $0, (%rsi)
        mov     $POLL, %rdi
        mov     (%rdi), %edi
        mov     $8, %edx
        mov     $1, %eax                # write
        syscall
serve:  mov     $POLL, %rdi
        mov     $2, %esi
        xor     %edx, %edx
        xor     %r10d, %r10d
        mov     $8, %r8d
        mov     $271, %eax              # ppoll
        syscall
        test    %rax, %rax
        jle     serve
        mov     $POLL, %rbp
        cmpw    $0, 14(%rbp)
        je      asked
        mov     8(%rbp), %edi
        mov     $SIG, %rsi
        mov     $128, %edx
        xor     %eax, %eax              # read
        syscall
reap:   mov     $-1, %rdi
        mov     $MSG+4, %rsi
        mov     $0x40000001, %edx       # WNOHANG | __WALL
        xor     %r10d, %r10d
        mov     $61, %eax               # wait4
        syscall
        test    %rax, %rax
        jle     asked
        mov     $QUIET, %rsi
        cmpl    $0, (%rsi)
        jne     reap
        mov     $MSG, %rsi
        mov     %eax, (%rsi)
        mov     (%rbp), %edi
        mov     $8, %edx
        mov     $1, %eax
        syscall
        jmp     reap
asked:  cmpw    $0, 6(%rbp)
        je      serve
        mov     (%rbp), %edi
        mov     $REQ, %rsi
        mov     $16, %edx
        xor     %eax, %eax
        syscall
        test    %rax, %rax
        jle     gone
        mov     (%rsi), %rbx
        mov     8(%rsi), %r12
        mov     $END_SERVE, %r15d
        jmp     batch
gone:   mov     $231, %eax              # the supervisor has ended: so do we
        xor     %edi, %edi
        syscall
