//! The live page: a small HTTP server in the launcher.
//!
//! It listens on the loopback unless asked otherwise, answers only those who have the token, and can't hold up the job: each
//! connection has a thread of its own, little time, and there are few of them. All that the page needs is in this program.

pub mod http;
mod metrics;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corro_core::{Error, Result};

use crate::job_socket::{self, JobSocket};
use crate::view::Since;
use crate::watcher::Watcher;
use http::{Answer, MAX_REQUEST, Refused, Request, same};

/// Connections at one time; more are closed at once.
const MAX_CONNECTIONS: usize = 32;
/// How long a request may take to come, and an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who has asked for the job's state within this time looks at the page, and is waited for so long when the job ends.
const LOOKS: Duration = Duration::from_secs(4);
const FAREWELL: Duration = Duration::from_millis(1500);

const HTML: &str = include_str!("page/assets/page.html");
const STYLE: &str = include_str!("page/assets/page.css");
const DRAW: &str = include_str!("page/assets/draw.js");
const SCRIPT: &str = include_str!("page/assets/page.js");

/// What is shown.
#[derive(Clone, Debug)]
pub enum Source {
    /// A job that runs.
    Live(Arc<Watcher>),
    /// Recordings: their names, and what is in them.
    Files(Arc<Vec<(String, String)>>),
}

/// A page that is served until this is dropped.
#[derive(Debug)]
pub struct Page {
    /// Where to find it, with the token.
    pub url: String,
    address: SocketAddr,
    over: Arc<AtomicBool>,
    shown: Shown,
}

/// When what was shown last was asked for.
type Shown = Arc<Mutex<Option<Instant>>>;

struct Server {
    source: Source,
    /// `None`: who may connect may ask.
    token: Option<String>,
    over: Arc<AtomicBool>,
    connections: AtomicUsize,
    shown: Shown,
}

/// Where a page is by default: a free port of this host alone.
pub fn default_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// An address as users write it: `8080`, `127.0.0.1:8080`, `0.0.0.0:8080`, `[::]:8080`.
pub fn parse_address(text: &str) -> Result<SocketAddr> {
    let port =
        text.strip_prefix(':').unwrap_or(text).parse::<u16>().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let alone = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0));
    port.ok().or(alone.ok()).or(text.parse().ok()).ok_or_else(|| {
        Error::Usage(format!(
            "{text:?} is no address for a page: give a port, or an address and a port (127.0.0.1:8080)"
        ))
    })
}

/// Serves a page.
pub fn serve(address: SocketAddr, source: Source) -> Result<Page> {
    let doing = || format!("serving a page at {address}");
    let listener = TcpListener::bind(address).map_err(|e| Error::io(doing(), e))?;
    let address = listener.local_addr().map_err(|e| Error::io(doing(), e))?;
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|e| Error::io("making a token", e))?;
    let token = format!("{:032x}", u128::from_le_bytes(random));
    // An address that stands for all of them is none to put into a browser.
    let shown =
        if address.ip().is_unspecified() { SocketAddr::new(this_host(address.ip()), address.port()) } else { address };
    let url = format!("http://{shown}/?token={token}");
    let over = Arc::new(AtomicBool::new(false));
    let shown_at = Shown::default();
    let server = Server {
        source,
        token: Some(token),
        over: Arc::clone(&over),
        connections: AtomicUsize::new(0),
        shown: Arc::clone(&shown_at),
    };
    std::thread::Builder::new()
        .name("corro-page".into())
        .spawn(move || accept(&Arc::new(server), || listener.accept().map(|(stream, _)| stream)))
        .map_err(|e| Error::io("starting a thread", e))?;
    Ok(Page { url, address, over, shown: shown_at })
}

/// The address by which this host would reach others.
fn this_host(any: IpAddr) -> IpAddr {
    let found = std::net::UdpSocket::bind(SocketAddr::new(any, 0)).and_then(|socket| {
        // Nothing is sent: the system only looks which way it would go.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    found.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
}

impl Page {
    /// The job is over: whoever looks gets to see how it ended, if that takes no longer than a moment.
    pub fn farewell(&self) {
        let ended = Instant::now();
        let shown = || *self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown().is_none_or(|at| at.elapsed() > LOOKS) {
            return;
        }
        while shown().is_some_and(|at| at < ended) && ended.elapsed() < FAREWELL {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(100));
    }
}

/// What both kinds of connections can do.
trait Connection: Read + Write + Send + 'static {
    fn limit_read(&self, time: Duration) -> std::io::Result<()>;
    fn limit_write(&self, time: Duration) -> std::io::Result<()>;
}

impl Connection for TcpStream {
    fn limit_read(&self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time))
    }

    fn limit_write(&self, time: Duration) -> std::io::Result<()> {
        self.set_write_timeout(Some(time))
    }
}

impl Connection for UnixStream {
    fn limit_read(&self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time))
    }

    fn limit_write(&self, time: Duration) -> std::io::Result<()> {
        self.set_write_timeout(Some(time))
    }
}

/// Answers this user's other programs about a job, until what it gives is dropped. See [`crate::job_socket`].
pub fn open_job_socket(folder: &Path, watcher: Arc<Watcher>) -> Result<JobSocket> {
    let (socket, listener) = job_socket::open(folder)?;
    let source = Source::Live(watcher);
    let connections = AtomicUsize::new(0);
    let server = Server { source, token: None, over: Arc::default(), connections, shown: Shown::default() };
    std::thread::Builder::new()
        .name("corro-socket".into())
        .spawn(move || accept(&Arc::new(server), || listener.accept().map(|(stream, _)| stream)))
        .map_err(|e| Error::io("starting a thread", e))?;
    Ok(socket)
}

fn accept<C: Connection>(server: &Arc<Server>, next: impl Fn() -> std::io::Result<C>) {
    loop {
        let stream = next();
        if server.over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else {
            // Too many files are open, for instance: that passes.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if server.connections.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            server.connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let worker = Arc::clone(server);
        let started = std::thread::Builder::new().name("corro-page-answer".into()).spawn(move || {
            let _ = worker.converse(stream);
            worker.connections.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            server.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Server {
    fn converse(&self, mut stream: impl Connection) -> std::io::Result<()> {
        stream.limit_write(PATIENCE)?;
        let (answer, is_view) = match receive(&mut stream)? {
            Ok(request) => {
                let asked = Instant::now();
                (self.answer(&request), (request.path == "/view").then_some(asked))
            }
            Err(refused) => (Answer::refused(refused), None),
        };
        stream.write_all(&answer.bytes())?;
        if is_view.is_some() {
            *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = is_view;
        }
        Ok(())
    }

    fn answer(&self, request: &Request) -> Answer {
        let token = request.get("token").or(request.bearer.as_deref()).unwrap_or_default();
        // Style and script are the same for everyone, and say nothing of the job.
        match request.path.as_str() {
            "/page.css" => return Answer::of("text/css; charset=utf-8", STYLE),
            "/draw.js" => return Answer::of("text/javascript; charset=utf-8", DRAW),
            "/page.js" => return Answer::of("text/javascript; charset=utf-8", SCRIPT),
            _ => {}
        }
        if self.token.as_ref().is_some_and(|wanted| !same(token, wanted)) {
            return Answer::refused(Refused(
                401,
                "this page wants the token that the launcher has printed with its address",
            ));
        }
        match (request.path.as_str(), &self.source) {
            ("/", _) => Answer::of("text/html; charset=utf-8", HTML),
            ("/view", Source::Live(watcher)) => {
                let since = Since {
                    row: request.number("row"),
                    lines: request.number("lines").unwrap_or(0),
                    events: request.number("events").unwrap_or(0),
                };
                Answer::of(JSON, watcher.view(since))
            }
            ("/pulse", Source::Live(watcher)) => {
                Answer::of(JSON, format!("{:?}", watcher.with(|story, now| story.pulse(now))))
            }
            ("/metrics", Source::Live(watcher)) => Answer::of(
                "text/plain; version=0.0.4; charset=utf-8",
                watcher.with(|story, _| metrics::prometheus(story)),
            ),
            ("/record", Source::Live(watcher)) => Answer::of(JSON, watcher.recorded()),
            ("/stacks", Source::Live(watcher)) => Answer::of("text/plain; charset=utf-8", watcher.stacks()),
            ("/view", Source::Files(files)) => match files.get(request.number("file").unwrap_or(0) as usize) {
                Some((_, view)) => Answer::of(JSON, view.as_str()),
                None => Answer::refused(NOT_THERE),
            },
            ("/files", Source::Files(files)) => {
                let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
                Answer::of(JSON, serde_json::to_vec(&names).unwrap_or_default())
            }
            ("/files", Source::Live(_)) => Answer::of(JSON, "[]"),
            _ => Answer::refused(NOT_THERE),
        }
    }
}

const JSON: &str = "application/json";
const NOT_THERE: Refused = Refused(404, "there is nothing here");

/// A request, within its time.
fn receive(stream: &mut impl Connection) -> std::io::Result<std::result::Result<Request, Refused>> {
    let until = Instant::now() + PATIENCE;
    let (mut bytes, mut piece) = (Vec::new(), [0; 1024]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(Refused(408, "the request did not come in time")));
        }
        stream.limit_read(left)?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(Err(Refused(400, "this is no request"))),
            Ok(count) => bytes.extend_from_slice(&piece[..count.min(MAX_REQUEST)]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => continue,
            Err(e) => return Err(e),
        }
        match Request::parse(&bytes) {
            Ok(Some(request)) => return Ok(Ok(request)),
            Ok(None) => {}
            Err(refused) => return Ok(Err(refused)),
        }
    }
}

/// One HTML file that shows a recording, beside another if one is given, and needs nothing else.
pub fn whole(view: &str, against: Option<&str>) -> String {
    // In a script, `</script>` would end it, wherever it stands.
    let [view, against] = [view, against.unwrap_or("null")].map(|view| view.replace('<', "\\u003c"));
    HTML.replace("<link rel=\"stylesheet\" href=\"page.css\">", &format!("<style>{STYLE}</style>"))
        .replace(
            "<script src=\"draw.js\"></script>",
            &format!("<script>{DRAW}</script><script>window.RECORDING={view};window.AGAINST={against};</script>"),
        )
        .replace("<script src=\"page.js\"></script>", &format!("<script>{SCRIPT}</script>"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watcher::Files;

    fn ask(page: &Page, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(page.address).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(page: &Page, path: &str, token: &str) -> String {
        ask(page, format!("GET {path}?token={token} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
    }

    fn token(page: &Page) -> &str {
        page.url.rsplit_once('=').unwrap().1
    }

    fn live() -> Page {
        serve(default_address(), Source::Live(Watcher::start("train.py", Files::default()).unwrap())).unwrap()
    }

    #[test]
    fn the_token_opens_and_nothing_else_does() {
        let page = live();
        assert!(get(&page, "/", token(&page)).starts_with("HTTP/1.1 200 OK"));
        let view = get(&page, "/view", token(&page));
        assert!(view.contains("\"command\":\"train.py\""), "{view}");
        let last = if token(&page).ends_with('0') { '1' } else { '0' };
        let almost = format!("{}{last}", &token(&page)[..31]);
        for wrong in ["", "x", &almost, &format!("{}0", token(&page))] {
            for path in ["/", "/view", "/metrics", "/files", "/etc/passwd", "/../../etc/passwd"] {
                assert!(get(&page, path, wrong).starts_with("HTTP/1.1 401"), "{path} {wrong}");
            }
        }
        assert!(get(&page, "/../page.css", token(&page)).starts_with("HTTP/1.1 404"));
        let bearer = format!("GET /metrics HTTP/1.1\r\nAuthorization: Bearer {}\r\n\r\n", token(&page));
        assert!(ask(&page, bearer.as_bytes()).starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn who_looks_sees_the_end() {
        let watcher = Watcher::start("train.py", Files::default()).unwrap();
        let page = serve(default_address(), Source::Live(Arc::clone(&watcher))).unwrap();
        let nobody = Instant::now();
        page.farewell();
        assert!(nobody.elapsed() < FAREWELL, "nobody looks");
        get(&page, "/view", token(&page));
        watcher.finish(None);
        std::thread::scope(|scope| {
            let ends = scope.spawn(|| page.farewell());
            while !ends.is_finished() {
                assert!(get(&page, "/view", token(&page)).contains("\"state\":\"done\""));
            }
        });
    }

    #[test]
    fn slow_and_strange_clients_disturb_nobody() {
        let page = live();
        let slow: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(page.address).unwrap()).collect();
        for strange in [b"\x16\x03\x01\x02\0".as_slice(), b"GET / HTTP/1.1\r\n", &vec![0xff; 20_000]] {
            let mut stream = TcpStream::connect(page.address).unwrap();
            let _ = stream.write_all(strange);
            drop(stream);
        }
        assert!(get(&page, "/view", token(&page)).starts_with("HTTP/1.1 200"));
        // More than it takes at a time are closed, and it goes on when they are gone.
        let many: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(page.address).unwrap()).collect();
        drop((slow, many));
        let until = Instant::now() + Duration::from_secs(30);
        while !get_or_nothing(&page).starts_with("HTTP/1.1 200") {
            assert!(Instant::now() < until, "it does not answer any more");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn get_or_nothing(page: &Page) -> String {
        let mut stream = TcpStream::connect(page.address).unwrap();
        let mut answer = String::new();
        let request = format!("GET /view?token={} HTTP/1.1\r\n\r\n", token(page));
        let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        answer
    }

    #[test]
    fn addresses_are_as_users_write_them() {
        let address = |text: &str| parse_address(text).map(|a| a.to_string());
        assert_eq!(address("8080").unwrap(), "127.0.0.1:8080");
        assert_eq!(address(":8080").unwrap(), "127.0.0.1:8080");
        assert_eq!(address("0.0.0.0:80").unwrap(), "0.0.0.0:80");
        assert_eq!(address("::1").unwrap(), "[::1]:0");
        assert!(address("everywhere").unwrap_err().to_string().contains("everywhere"));
    }

    #[test]
    fn a_report_is_one_file_and_ends_where_it_should() {
        let html = whole("{\"version\":1,\"command\":\"</script><script>alert(1)\"}", Some("{\"size\":1}"));
        assert!(
            !html.contains("href=\"page.css\"") && !html.contains("src=\"") && !html.contains("</script><script>alert")
        );
        assert!(html.contains("window.RECORDING={\"version\":1") && html.contains("window.AGAINST={\"size\":1}"));
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        for asset in [HTML, STYLE, DRAW, SCRIPT] {
            assert!(
                !asset.contains("http://") && !asset.contains("https://") && !asset.contains("innerHTML"),
                "{asset}"
            );
        }
    }
}
