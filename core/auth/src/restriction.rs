//! From where a user may authenticate, and to which address of the server.
//!
//! Source: MongoDB's manual, "Authentication Restrictions" of `createUser`.

use std::net::IpAddr;

use pinion_bson::{DocBuilder, RawArray, RawBsonRef, RawDocument, elements, values};

use crate::access_error::{AccessError, AccessErrorCode};
use crate::fields;

/// `authenticationRestrictions` of a user or a role. One of them must hold; without any, every
/// client is admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restrictions(Vec<Restriction>);

/// Both of its fields must hold; an absent one does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Restriction {
    client_source: Option<Vec<AddressRange>>,
    server_address: Option<Vec<AddressRange>>,
}

/// An address, or a range of them in CIDR notation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AddressRange {
    /// As it was given: that is how it is shown.
    text: String,
    address: IpAddr,
    /// Leading bits that an address has in common with this one.
    prefix_bits: u32,
}

impl Restrictions {
    /// Reads `[{clientSource: [..], serverAddress: [..]}, ..]`. `path` names the array in errors:
    /// `createUser.authenticationRestrictions`.
    ///
    /// # Errors
    /// `TypeMismatch` and `IDLUnknownField` of a field, `CollectionIsEmpty` of a restriction
    /// without fields, `UnsupportedFormat` of what is no address.
    pub fn parse(array: &RawArray, path: &str) -> Result<Restrictions, AccessError> {
        let read = values(array).enumerate().map(|(at, value)| {
            let path = &format!("{path}.{at}");
            Restriction::parse(fields::document(value, path)?, path)
        });
        read.collect::<Result<_, _>>().map(Restrictions)
    }

    /// Writes them as an array into the document that is open, under this name.
    pub fn append_to(&self, out: &mut DocBuilder, name: &str) {
        out.start_array(name);
        self.push_each(out);
        out.end();
    }

    /// Writes them as an array into the array that is open.
    pub fn push_to(&self, out: &mut DocBuilder) {
        out.push_array();
        self.push_each(out);
        out.end();
    }

    fn push_each(&self, out: &mut DocBuilder) {
        for restriction in &self.0 {
            restriction.push_to(out);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a client may authenticate. An address is `None` on a connection that has none, by a
    /// socket of the file system: no list of addresses has it.
    pub fn admits(&self, client: Option<IpAddr>, server: Option<IpAddr>) -> bool {
        self.0.is_empty() || self.0.iter().any(|one| one.admits(client, server))
    }
}

impl Restriction {
    fn parse(restriction: &RawDocument, path: &str) -> Result<Restriction, AccessError> {
        let mut read = Restriction::default();
        for (name, value) in elements(restriction) {
            let field = &format!("{path}.{name}");
            match name {
                "clientSource" => read.client_source = Some(parse_ranges(value, field)?),
                "serverAddress" => read.server_address = Some(parse_ranges(value, field)?),
                _ => return Err(fields::unknown(path, name)),
            }
        }
        if read == Restriction::default() {
            return Err(AccessError::new(
                AccessErrorCode::CollectionIsEmpty,
                "At least one of 'clientSource' and/or 'serverAddress' must be set",
            ));
        }
        Ok(read)
    }

    fn push_to(&self, out: &mut DocBuilder) {
        out.push_document();
        let lists = [
            ("clientSource", &self.client_source),
            ("serverAddress", &self.server_address),
        ];
        for (name, ranges) in lists {
            let Some(ranges) = ranges else { continue };
            out.start_array(name);
            for range in ranges {
                out.push(&*range.text);
            }
            out.end();
        }
        out.end();
    }

    fn admits(&self, client: Option<IpAddr>, server: Option<IpAddr>) -> bool {
        let is_in = |ranges: &Option<Vec<AddressRange>>, address: Option<IpAddr>| match ranges {
            None => true,
            Some(ranges) => {
                address.is_some_and(|address| ranges.iter().any(|range| range.contains(address)))
            }
        };
        is_in(&self.client_source, client) && is_in(&self.server_address, server)
    }
}

fn parse_ranges(value: RawBsonRef<'_>, path: &str) -> Result<Vec<AddressRange>, AccessError> {
    let array = fields::array(value, path)?;
    let ranges = values(array).enumerate().map(|(at, value)| {
        let text = fields::string(value, &format!("{path}.{at}"))?;
        AddressRange::parse(text)
    });
    ranges.collect()
}

impl AddressRange {
    fn parse(text: &str) -> Result<AddressRange, AccessError> {
        let refused = |why: &str| AccessError::new(AccessErrorCode::UnsupportedFormat, why);
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| refused("Invalid IP address in CIDR string"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match prefix {
            None => most,
            Some(prefix) => prefix
                .parse()
                .map_err(|_| refused("Non-numeric length in CIDR string"))?,
        };
        if prefix_bits > most {
            return Err(refused("Invalid length in CIDR string"));
        }
        Ok(AddressRange {
            text: text.to_owned(),
            address,
            prefix_bits,
        })
    }

    /// A client that comes by IPv4 to a socket of IPv6 has an IPv4 address all the same.
    fn contains(&self, address: IpAddr) -> bool {
        let differing = match (self.address, address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V4(b)) => {
                (a.to_bits() ^ b.to_ipv6_mapped().to_bits()).leading_zeros()
            }
            (IpAddr::V4(_), IpAddr::V6(_)) => return false,
        };
        differing >= self.prefix_bits
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawArrayBuf, RawBson, rawbson, rawdoc};

    use super::*;

    fn array(value: RawBson) -> RawArrayBuf {
        let RawBson::Array(array) = value else {
            panic!("an array")
        };
        array
    }

    fn parse(value: RawBson) -> Result<Restrictions, AccessError> {
        Restrictions::parse(&array(value), "createUser.authenticationRestrictions")
    }

    #[test]
    fn addresses_are_admitted() {
        let check = |value: RawBson, client: &str, server: &str, expected: bool| {
            let (client, server) = (client.parse().ok(), server.parse().ok());
            let read = parse(value.clone()).unwrap();
            assert_eq!(
                read.admits(client, server),
                expected,
                "{value:?} {client:?} {server:?}"
            );
        };
        check(rawbson!([]), "10.0.0.1", "10.0.0.2", true);
        check(rawbson!([]), "socket", "socket", true);
        let client = rawbson!([{ "clientSource": ["10.0.0.1", "192.168.0.0/16"] }]);
        check(client.clone(), "10.0.0.1", "10.0.0.2", true);
        check(client.clone(), "10.0.0.2", "10.0.0.2", false);
        check(client.clone(), "192.168.7.9", "10.0.0.2", true);
        check(client.clone(), "::ffff:192.168.7.9", "::1", true);
        check(client.clone(), "192.169.0.0", "10.0.0.2", false);
        check(client, "socket", "socket", false);
        let both = rawbson!([{ "clientSource": ["10.0.0.1"], "serverAddress": ["10.0.0.2"] }]);
        check(both.clone(), "10.0.0.1", "10.0.0.2", true);
        check(both.clone(), "10.0.0.1", "10.0.0.3", false);
        check(both, "10.0.0.3", "10.0.0.2", false);
        let either = rawbson!([{ "clientSource": ["10.0.0.1"] }, { "serverAddress": ["::1"] }]);
        check(either.clone(), "10.0.0.1", "10.0.0.2", true);
        check(either.clone(), "10.0.0.9", "::1", true);
        check(either, "10.0.0.9", "10.0.0.2", false);
        let none = rawbson!([{ "clientSource": [] }]);
        check(none, "10.0.0.1", "10.0.0.2", false);
        let wide = rawbson!([{ "clientSource": ["0.0.0.0/0"] }]);
        check(wide.clone(), "1.2.3.4", "::1", true);
        check(wide, "2001:db8::1", "::1", false);
        let six = rawbson!([{ "clientSource": ["2001:db8::5/33", "::ffff:10.0.0.0/104"] }]);
        check(six.clone(), "2001:db8:7fff::1", "::1", true);
        check(six.clone(), "2001:db8:8000::1", "::1", false);
        check(six, "10.9.9.9", "::1", true);
    }

    #[test]
    fn restrictions_are_written_back() {
        let given = rawbson!([
            { "clientSource": ["10.0.0.1/8", "::1"] },
            { "clientSource": ["10.0.0.1"], "serverAddress": ["10.0.0.2"] },
            { "serverAddress": [] },
        ]);
        let mut out = DocBuilder::new();
        parse(given.clone())
            .unwrap()
            .append_to(&mut out, "authenticationRestrictions");
        assert_eq!(
            out.finish(),
            rawdoc! { "authenticationRestrictions": given }
        );
    }

    #[test]
    fn what_is_no_restriction() {
        let check = |value: RawBson, code: i32, message: &str| {
            let error = parse(value).expect_err(message);
            assert_eq!((error.code.number(), &*error.message), (code, message));
        };
        let address = |text: &str| rawbson!([{ "clientSource": [text] }]);
        check(address("10.0.0"), 12, "Invalid IP address in CIDR string");
        check(address(""), 12, "Invalid IP address in CIDR string");
        check(
            address("10.0.0.0/"),
            12,
            "Non-numeric length in CIDR string",
        );
        check(
            address("10.0.0.0/-1"),
            12,
            "Non-numeric length in CIDR string",
        );
        check(address("10.0.0.0/33"), 12, "Invalid length in CIDR string");
        check(address("::/129"), 12, "Invalid length in CIDR string");
        check(
            rawbson!([{}]),
            162,
            "At least one of 'clientSource' and/or 'serverAddress' must be set",
        );
        check(
            rawbson!([{ "clientSource": "10.0.0.1" }]),
            14,
            "BSON field 'createUser.authenticationRestrictions.0.clientSource' is the wrong type \
             'string', expected type 'array'",
        );
        check(
            rawbson!([{ "client": [] }]),
            40415,
            "BSON field 'createUser.authenticationRestrictions.0.client' is an unknown field.",
        );
    }
}
