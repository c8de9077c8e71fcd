//! A TCP connection, with or without TLS, that is opened waiting and then used without.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::endpoint::Endpoint;

/// How long opening a connection may take, each step.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Anything that bytes go into and come out of.
pub trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// A connection.
pub enum Transport {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Transport {
    /// Connects; reads and writes wait.
    pub fn connect(endpoint: &Endpoint) -> Result<Self, String> {
        let place = (endpoint.host.as_str(), endpoint.port);
        let failed =
            |error: io::Error| format!("cannot connect to {}:{}: {error}", place.0, place.1);
        let mut last = None;
        for address in place.to_socket_addrs().map_err(failed)? {
            match TcpStream::connect_timeout(&address, OPEN_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(failed)?;
                    stream
                        .set_read_timeout(Some(OPEN_TIMEOUT))
                        .map_err(failed)?;
                    stream
                        .set_write_timeout(Some(OPEN_TIMEOUT))
                        .map_err(failed)?;
                    return Ok(Self::Plain(stream));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(failed(last.unwrap_or_else(|| {
            io::Error::other("the name has no address")
        })))
    }

    /// Begins TLS on a plain connection, the handshake included.
    pub fn secure(self, config: &Arc<ClientConfig>, host: &str) -> Result<Self, String> {
        let Self::Plain(mut stream) = self else {
            return Ok(self);
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("'{host}' is no name that a certificate can have"))?;
        let failed = |error: &dyn std::fmt::Display| format!("the TLS handshake failed: {error}");
        let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(|e| failed(&e))?;
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).map_err(|e| failed(&e))?;
        }
        Ok(Self::Tls(Box::new(StreamOwned::new(tls, stream))))
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(tls) => &tls.sock,
        }
    }

    /// The connection itself, where there is no TLS around it.
    pub fn into_plain(self) -> Option<TcpStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Tls(_) => None,
        }
    }

    /// From now on nothing waits.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        self.socket().set_nonblocking(true)
    }

    /// Whether a read that fills less than the buffer has taken all there was.
    pub fn short_read_is_last(&self) -> bool {
        matches!(self, Self::Plain(_))
    }
}

impl AsRawFd for Transport {
    fn as_raw_fd(&self) -> RawFd {
        self.socket().as_raw_fd()
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    /// TLS: sends what is encrypted and not yet sent.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => tls.flush(),
        }
    }
}
