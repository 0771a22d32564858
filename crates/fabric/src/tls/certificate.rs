//! The few fields of an X.509 certificate (RFC 5280, section 4.1) that are read here.
//!
//! `webpki` reads certificates of version 3. Certificates of version 1, which have no extensions, are
//! made by `openssl x509 -req` unless its options ask for version 3, so clusters have them.

use std::cmp::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::{SignatureVerificationAlgorithm, TrustAnchor, UnixTime};

/// A certificate whose outline has been read; nothing of it is proven
#[derive(Debug)]
pub(super) struct Certificate<'a> {
    /// Signed part
    signed: &'a [u8],
    /// The content of the algorithm that signed it
    signature_algorithm: &'a [u8],
    signature: &'a [u8],
    pub(super) is_version_1: bool,
    /// The content of the issuer's name
    issuer: &'a [u8],
    not_before: Time,
    not_after: Time,
    /// The public key with its algorithm, as a whole
    pub(super) public_key_info: &'a [u8],
}

/// A time as `YYYYMMDDHHMMSS`, so that text compares as time does
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Time(String);

impl<'a> Certificate<'a> {
    /// Reads the outline; `None` if it is no certificate
    pub(super) fn read(der: &'a [u8]) -> Option<Self> {
        let (certificate, rest) = element(der, SEQUENCE)?;
        if !rest.is_empty() {
            return None;
        }
        let (_, after_signed) = element(certificate, SEQUENCE)?;
        let signed = &certificate[..certificate.len() - after_signed.len()];
        let (signature_algorithm, rest) = element(after_signed, SEQUENCE)?;
        let signature = bits(rest)?;

        let (fields, _) = element(signed, SEQUENCE)?;
        let is_version_1 = fields.first() != Some(&VERSION);
        let fields = if is_version_1 {
            fields
        } else {
            element(fields, VERSION)?.1
        };
        let (_, fields) = element(fields, INTEGER)?;
        let (signature_again, fields) = element(fields, SEQUENCE)?;
        if signature_again != signature_algorithm {
            return None;
        }
        let (issuer, fields) = element(fields, SEQUENCE)?;
        let (validity, fields) = element(fields, SEQUENCE)?;
        let (not_before, validity) = Time::read(validity)?;
        let (not_after, _) = Time::read(validity)?;
        let (_, fields) = element(fields, SEQUENCE)?;
        let (_, rest) = element(fields, SEQUENCE)?;
        Some(Self {
            signed,
            signature_algorithm,
            signature,
            is_version_1,
            issuer,
            not_before,
            not_after,
            public_key_info: &fields[..fields.len() - rest.len()],
        })
    }

    /// Returns an error with the reason if the certificate is not valid at that time
    pub(super) fn check_time(&self, now: UnixTime) -> Result<(), String> {
        let now = Time::of_unix(now.as_secs());
        if now < self.not_before {
            return Err(format!(
                "it is not valid before {}",
                self.not_before.shown()
            ));
        }
        match now.cmp(&self.not_after) {
            Ordering::Greater => Err(format!("it has expired on {}", self.not_after.shown())),
            Ordering::Less | Ordering::Equal => Ok(()),
        }
    }

    /// Returns whether one of the anchors has signed it
    pub(super) fn is_signed_by(
        &self,
        anchors: &[TrustAnchor<'_>],
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> bool {
        let issuers = anchors
            .iter()
            .filter(|anchor| &*anchor.subject == self.issuer);
        issuers
            .filter_map(|anchor| public_key(&anchor.subject_public_key_info))
            .any(|(key_algorithm, key)| {
                algorithms
                    .iter()
                    .filter(|algorithm| {
                        &*algorithm.signature_alg_id() == self.signature_algorithm
                            && &*algorithm.public_key_alg_id() == key_algorithm
                    })
                    .any(|algorithm| {
                        algorithm
                            .verify_signature(key, self.signed, self.signature)
                            .is_ok()
                    })
            })
    }

    /// The algorithm of the public key, and the key
    pub(super) fn public_key(&self) -> Option<(&'a [u8], &'a [u8])> {
        public_key(element(self.public_key_info, SEQUENCE)?.0)
    }
}

impl Time {
    fn read(der: &[u8]) -> Option<(Self, &[u8])> {
        let (text, rest) = element(der, UTC_TIME).or_else(|| element(der, GENERALIZED_TIME))?;
        let digits = text.strip_suffix(b"Z")?;
        let digits = str::from_utf8(digits).ok()?;
        if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        match digits.len() {
            // Two digits of the year: RFC 5280, section 4.1.2.5.1.
            12 if digits < "50" => Some((Self(format!("20{digits}")), rest)),
            12 => Some((Self(format!("19{digits}")), rest)),
            14 => Some((Self(digits.to_owned()), rest)),
            _ => None,
        }
    }

    fn of_unix(seconds: u64) -> Self {
        let (days, seconds) = (seconds / 86400, seconds % 86400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        Self(format!(
            "{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}"
        ))
    }

    fn shown(&self) -> String {
        let part = |at: usize, bytes| &self.0[at..at + bytes];
        format!(
            "{}-{}-{} {}:{}:{} UTC",
            part(0, 4),
            part(4, 2),
            part(6, 2),
            part(8, 2),
            part(10, 2),
            part(12, 2)
        )
    }
}

/// The time of this host
pub(super) fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixTime::since_unix_epoch(since.unwrap_or_default())
}

/// Year, month and day of a day since 1970-01-01, by the 400 years after which the calendar repeats
fn civil(mut days: u64) -> (u64, usize, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    loop {
        let length = 365 + u64::from(is_leap(year));
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let mut month = 1;
    for length in [
        31,
        28 + u64::from(is_leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
    ] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

/// Takes an element of DER off the front: its content, and what is behind it
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, first], rest) = der.split_first_chunk()?;
    if found != tag {
        return None;
    }
    if first < 0x80 {
        return rest.split_at_checked(first.into());
    }
    let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
    if !(1..=3).contains(&length.len()) {
        return None;
    }
    let bytes = length
        .iter()
        .fold(0, |bytes, byte| bytes << 8 | usize::from(*byte));
    rest.split_at_checked(bytes)
}

/// The bytes of a bit string, which is whole bytes
fn bits(der: &[u8]) -> Option<&[u8]> {
    match element(der, BIT_STRING)?.0 {
        [0, bytes @ ..] => Some(bytes),
        _ => None,
    }
}

/// The algorithm and the key in the content of a public key info
fn public_key(content: &[u8]) -> Option<(&[u8], &[u8])> {
    let (algorithm, rest) = element(content, SEQUENCE)?;
    Some((algorithm, bits(rest)?))
}

/// Tags of ASN.1
const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// The field of the version, absent in version 1
const VERSION: u8 = 0xa0;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use super::*;

    #[test]
    fn seconds_are_the_dates_they_should_be() {
        // `date -u -d @SECONDS +%Y%m%d%H%M%S`
        for (seconds, expected) in [
            (0, "19700101000000"),
            (951_782_399, "20000228235959"),
            (951_782_400, "20000229000000"),
            (1_735_689_599, "20241231235959"),
            (4_107_542_400, "21000301000000"),
            (32_503_680_000, "30000101000000"),
        ] {
            assert_eq!(Time::of_unix(seconds).0, expected);
        }
    }

    #[test]
    fn noise_is_no_certificate() {
        for noise in [
            &b""[..],
            b"\x30",
            b"\x30\x80\x00\x00",
            b"\x30\x84\xff\xff\xff\xff",
            b"\x30\x02\x30\x05",
            &[0x30; 300],
        ] {
            assert!(Certificate::read(noise).is_none());
        }
    }
}
