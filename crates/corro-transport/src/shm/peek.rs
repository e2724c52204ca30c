//! Reading another process's private memory, where the system allows it.
//!
//! Long data that is not in shared memory must otherwise be copied there first; this spares that copy. It is what MPI
//! libraries do too. Containers and hardened hosts often forbid it, so it is tried once, when a team is made, and used
//! only if every member can read every other.

#![expect(unsafe_code, reason = "process_vm_readv has no safe wrapper")]

/// Reads `into.len()` bytes at `address` of process `pid`. The error is the system's number.
pub(crate) fn read(pid: u32, address: usize, into: &mut [u8]) -> Result<(), std::io::Error> {
    let mut done = 0;
    while done < into.len() {
        let left = &mut into[done..];
        let local = libc::iovec { iov_base: left.as_mut_ptr().cast(), iov_len: left.len() };
        let remote = libc::iovec { iov_base: (address + done) as *mut libc::c_void, iov_len: left.len() };
        // SAFETY: the local range is a slice that is borrowed mutably for the call. The remote range is only read, by the
        // kernel, which checks it: whatever is or is not there, nothing of this process is touched.
        let count = unsafe { libc::process_vm_readv(pid.cast_signed(), &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(count) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(_) => return Err(std::io::Error::last_os_error()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_or_says_why_not() {
        let data: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let mut copy = vec![0; data.len()];
        match super::read(std::process::id(), data.as_ptr() as usize, &mut copy) {
            Ok(()) => assert!(copy == data),
            Err(e) => println!("this system does not let processes read each other's memory: {e}"),
        }
        assert!(super::read(std::process::id(), 8, &mut copy).is_err());
    }
}
