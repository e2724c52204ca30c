//! The local time as `Sun Nov 15 00:13:44 2026`.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The time now.
pub(super) fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    text(&local(seconds as libc::time_t))
}

#[expect(unsafe_code, reason = "only the C library knows the local time zone")]
fn local(seconds: libc::time_t) -> libc::tm {
    // SAFETY: `tm` is a C structure of numbers and one pointer, for which zeros are values.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live variables of this function; on failure `parts` stays as it is.
    unsafe { libc::localtime_r(&raw const seconds, &raw mut parts) };
    parts
}

fn text(t: &libc::tm) -> String {
    let name =
        |names: &[&'static str], at: i32| usize::try_from(at).ok().and_then(|i| names.get(i).copied()).unwrap_or("?");
    format!(
        "{} {} {:2} {:02}:{:02}:{:02} {}",
        name(&DAYS, t.tm_wday),
        name(&MONTHS, t.tm_mon),
        t.tm_mday,
        t.tm_hour,
        t.tm_min,
        t.tm_sec,
        1900 + t.tm_year
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_like_ctime() {
        let mut t = local(0);
        (t.tm_wday, t.tm_mon, t.tm_mday, t.tm_hour, t.tm_min, t.tm_sec, t.tm_year) = (0, 10, 5, 0, 13, 44, 126);
        assert_eq!(text(&t), "Sun Nov  5 00:13:44 2026");
        assert_eq!(now().len(), 24);
    }
}
