//! As much of HTTP/1.1 as the page needs: one request without a body, one answer, and the connection is closed. Pure.
//!
//! Written here and not taken from a crate: those that speak all of HTTP bring a runtime and a hundred thousand lines for one page on one
//! machine, and what they can do beyond this is what an attacker would use.

/// The longest request, with all its headers.
pub const MAX_REQUEST: usize = 8 * 1024;

/// A request that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The path, which begins with a slash.
    pub path: String,
    /// What stands behind the question mark.
    pub query: Vec<(String, String)>,
    /// The token of a header `Authorization: Bearer ...`.
    pub bearer: Option<String>,
}

/// Why a request is not answered: a status and words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub u16, pub &'static str);

impl Request {
    /// The request that these bytes begin with; `None` if it is not whole yet.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Refused> {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            return if bytes.len() >= MAX_REQUEST { Err(Refused(431, "the request is too long")) } else { Ok(None) };
        };
        let bad = Refused(400, "this is no request");
        let head = std::str::from_utf8(&bytes[..end]).map_err(|_| bad)?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(bad);
        };
        if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
            return Err(bad);
        }
        if method != "GET" {
            return Err(Refused(405, "only GET is answered"));
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = query.split('&').filter_map(|pair| pair.split_once('='));
        let bearer = lines.filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
            let is_it = name.eq_ignore_ascii_case("authorization");
            is_it.then(|| value.trim().strip_prefix("Bearer ").map(str::to_owned)).flatten()
        });
        Ok(Some(Self {
            path: path.to_owned(),
            query: query.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            bearer,
        }))
    }

    /// A part of the query.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A part of the query that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200, or why not.
    pub status: u16,
    /// Of what kind the body is.
    pub kind: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// All is well.
    pub fn of(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, kind, body: body.into() }
    }

    /// It is not.
    pub fn refused(Refused(status, why): Refused) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: format!("{why}\n").into_bytes() }
    }

    /// As it goes over the wire. Nothing may be loaded from elsewhere, framed, or kept.
    pub fn bytes(&self) -> Vec<u8> {
        let words = match self.status {
            200 => "OK",
            400 => "Bad Request",
            401 => "Unauthorized",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            431 => "Request Header Fields Too Large",
            _ => "Error",
        };
        let mut head = format!(
            "HTTP/1.1 {} {words}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\n\
             Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\r\n",
            self.status,
            self.kind,
            self.body.len()
        )
        .into_bytes();
        head.extend_from_slice(&self.body);
        head
    }
}

/// Whether two texts are equal, in a time that does not tell where they differ.
pub fn same(one: &str, other: &str) -> bool {
    let differ = one.bytes().zip(other.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differ) == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_are_read() {
        let text = b"GET /view?token=ab&since=7&x HTTP/1.1\r\nHost: a\r\nauthorization: Bearer t\r\n\r\n";
        for cut in 0..text.len() {
            assert_eq!(Request::parse(&text[..cut]), Ok(None));
        }
        let request = Request::parse(text).unwrap().unwrap();
        assert_eq!(
            (request.path.as_str(), request.get("token"), request.number("since")),
            ("/view", Some("ab"), Some(7))
        );
        assert_eq!(request.bearer.as_deref(), Some("t"));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let status = |text: &str| Request::parse(text.as_bytes()).unwrap_err().0;
        assert_eq!(status("POST / HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(status("GET http://elsewhere/ HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(status("\r\n\r\n"), 400);
        assert_eq!(status("GET / HTTP/2\r\n\r\n"), 400);
        assert_eq!(status(&"x".repeat(MAX_REQUEST)), 431);
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same("abc", "abc") && !same("abc", "abx") && !same("abc", "ab") && !same("", "a"));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_request_or_a_refusal(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Err(refused) = Request::parse(&bytes) {
                prop_assert!(String::from_utf8(Answer::refused(refused).bytes()).unwrap().starts_with("HTTP/1.1 4"));
            }
        }
    }
}
