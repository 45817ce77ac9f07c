//! A listener that answers `GET /metrics` over HTTP/1.1, one question after the other. That is all that Prometheus asks for, so no crate is needed.

use crate::base::{Error, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longest request that is read.
const REQUEST_BYTES: usize = 8 << 10;
/// Whoever does not ask, or does not read, within this time is hung up on, so that the next is answered.
const PATIENCE: Duration = Duration::from_secs(2);

/// A listener on a thread of its own, until it is dropped.
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Server {
    /// Listens at `host:port` (port 0: any free one), and answers with what `numbers` gives.
    pub fn start(address: &str, numbers: impl Fn() -> Result<String> + Send + 'static) -> Result<Server> {
        let wrong = |why: String| Error::invalid(format!("metrics address '{address}': {why}; expected host:port, 127.0.0.1:9464 say"));
        let at = address.to_socket_addrs().map_err(|e| wrong(e.to_string()))?.next().ok_or_else(|| wrong("it names no host".into()))?;
        let listener = TcpListener::bind(at).map_err(|e| Error::io(format!("metrics: listening at {at}"), e))?;
        let address = listener.local_addr().map_err(|e| Error::io("metrics: listening", e))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let body = move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let served = stream.and_then(|stream| serve(stream, &numbers));
                let _ = served.inspect_err(|e| tracing::debug!("metrics: {e}"));
            }
        };
        let thread = thread::Builder::new().name("laneway-metrics".into()).spawn(body).map_err(|e| Error::io("starting a thread", e))?;
        tracing::info!("metrics at http://{address}/metrics");
        Ok(Server { address, stop, thread: Some(thread), process: std::process::id() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A forked child has no such thread.
        let Some(thread) = self.thread.take().filter(|_| self.process == std::process::id()) else { return };
        self.stop.store(true, Ordering::Release);
        let mut wake = self.address;
        if wake.ip().is_unspecified() {
            wake.set_ip(if wake.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
        }
        if TcpStream::connect_timeout(&wake, PATIENCE).is_ok() {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, numbers: &impl Fn() -> Result<String>) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = request(&mut stream)?;
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => match numbers() {
            Ok(text) => ("200 OK", text),
            Err(e) => ("503 Service Unavailable", format!("{e}\n")),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", "the numbers are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "expected GET /metrics\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    if method != "HEAD" {
        stream.write_all(body.as_bytes())?;
    }
    Ok(())
}

/// The first line of a request, all of which is read.
fn request(stream: &mut TcpStream) -> std::io::Result<String> {
    let end = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|w| w == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || bytes.len() > REQUEST_BYTES {
            return Err(std::io::Error::other("a request that does not end"));
        }
        stream.set_read_timeout(Some(left))?;
        let mut some = [0; 1024];
        match stream.read(&mut some)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => bytes.extend(&some[..n]),
        }
    }
    let line = bytes.split(|b| *b == b'\r').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(server: &Server, text: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn it_answers_and_goes_on_after_nonsense() {
        let server = Server::start("127.0.0.1:0", || Ok("laneway_x 1\n".to_owned())).unwrap();
        let good = ask(&server, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            good.starts_with("HTTP/1.1 200 OK\r\n") && good.contains("Content-Length: 12\r\n") && good.ends_with("\r\n\r\nlaneway_x 1\n"),
            "{good}"
        );
        assert!(ask(&server, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(&server, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(&server, "\r\n\r\n").starts_with("HTTP/1.1 405"));
        drop(TcpStream::connect(server.address()).unwrap());
        assert!(ask(&server, "HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
        let address = server.address();
        drop(server);
        assert!(TcpStream::connect(address).is_err());
        assert!(Server::start("nowhere", || Ok(String::new())).err().unwrap().message.contains("host:port"));
    }
}
