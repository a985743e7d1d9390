//! `strftime` in UTC, for templates and timestamps, without a calendar library.

use std::time::{Duration, SystemTime};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// A point in time taken apart.
struct Date {
    year: i64,
    month: usize,   // 1..=12
    day: i64,       // 1..=31
    weekday: usize, // 0 is Monday
    year_day: i64,  // 1..=366
    second_of_day: i64,
}

impl Date {
    /// The proleptic Gregorian date, by counting 400-year eras from March 1, 0000.
    fn new(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX / 2);
        let days = seconds / 86_400;
        let shifted = days + 719_468;
        let era = shifted / 146_097;
        let day_of_era = shifted % 146_097;
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let year_day =
            if month <= 2 { day_of_year - 305 } else { day_of_year + 60 + i64::from(leap) };
        Self {
            year,
            month: month as usize,
            day,
            weekday: ((days + 3) % 7) as usize,
            year_day,
            second_of_day: seconds % 86_400,
        }
    }
}

/// Formats a time in UTC by a format of C's `strftime`.
///
/// # Errors
/// A message that names the directive, if it is not supported.
pub fn strftime(time: SystemTime, format: &str) -> Result<String, String> {
    let date = Date::new(time);
    let (hour, minute, second) =
        (date.second_of_day / 3600, date.second_of_day / 60 % 60, date.second_of_day % 60);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let plain = directive == Some('-');
        if plain {
            directive = chars.next();
        }
        let number = |n: i64, width: usize| match plain {
            true => n.to_string(),
            false => format!("{n:0width$}"),
        };
        let month = MONTHS[date.month - 1];
        let weekday = DAYS[date.weekday];
        let piece = match directive {
            Some('Y') => date.year.to_string(),
            Some('y') => number(date.year % 100, 2),
            Some('m') => number(date.month as i64, 2),
            Some('d') => number(date.day, 2),
            Some('e') => format!("{:2}", date.day),
            Some('j') => number(date.year_day, 3),
            Some('H') => number(hour, 2),
            Some('I') => number((hour + 11) % 12 + 1, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month.to_owned(),
            Some('b' | 'h') => month[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('F') => format!("{:04}-{:02}-{:02}", date.year, date.month, date.day),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let name = other.map_or("%".to_owned(), |c| format!("%{c}"));
                return Err(format!("strftime_now does not support the directive `{name}`"));
            }
        };
        out.push_str(&piece);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_dates() {
        let check = |seconds: u64, format: &str, want: &str| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(strftime(time, format).unwrap(), want);
        };
        check(0, "%Y-%m-%d %H:%M:%S %A", "1970-01-01 00:00:00 Thursday");
        check(1_709_210_096, "%d %b %Y, %j, %-d/%-m, %I:%M %p", "29 Feb 2024, 060, 29/2, 12:34 PM");
        check(1_735_603_200, "%B %j %a %%", "December 366 Tue %");
        check(1_740_787_200, "%F", "2025-03-01");
        assert!(strftime(SystemTime::UNIX_EPOCH, "%Q").unwrap_err().contains("`%Q`"));
    }
}
