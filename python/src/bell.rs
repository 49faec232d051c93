//! A descriptor that an event loop watches, and that any thread can ring.

#[cfg(target_os = "linux")]
pub(crate) use eventfd::Bell;
#[cfg(not(target_os = "linux"))]
pub(crate) use pair::Bell;

#[cfg(target_os = "linux")]
mod eventfd {
    use std::os::fd::OwnedFd;

    use rustix::event::{EventfdFlags, eventfd};

    pub(crate) struct Bell(OwnedFd);

    impl Bell {
        pub(crate) fn new() -> std::io::Result<Self> {
            Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        }

        pub(crate) fn watched(&self) -> &OwnedFd {
            &self.0
        }

        pub(crate) fn ring(&self) {
            // It fails only when the count is full, and then the loop wakes anyway.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }

        pub(crate) fn answer(&self) {
            let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod pair {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    pub(crate) struct Bell(OwnedFd, OwnedFd);

    impl Bell {
        pub(crate) fn new() -> std::io::Result<Self> {
            let (read, write) = UnixStream::pair()?;
            read.set_nonblocking(true)?;
            write.set_nonblocking(true)?;
            Ok(Self(read.into(), write.into()))
        }

        pub(crate) fn watched(&self) -> &OwnedFd {
            &self.0
        }

        pub(crate) fn ring(&self) {
            let _ = rustix::io::write(&self.1, &[1]);
        }

        pub(crate) fn answer(&self) {
            while rustix::io::read(&self.0, &mut [0u8; 64]).is_ok_and(|read| read > 0) {}
        }
    }
}
