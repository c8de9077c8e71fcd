//! The URI of a server.

/// Which protocol is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    MongoDb,
    Redis,
    Postgres,
}

/// Where the server is and as which user the client connects.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub scheme: Scheme,
    pub host: String,
    pub port: u16,
    pub user: Option<String>,
    pub password: String,
    pub database: Option<String>,
    pub tls: bool,
    pub auth_source: Option<String>,
    pub auth_mechanism: Option<String>,
    /// Options of the URI that mean something to drivers and nothing here.
    pub ignored: Vec<String>,
}

impl Endpoint {
    /// Parses `mongodb://`, `redis://`, `rediss://`, `postgresql://` and `postgres://`.
    pub fn parse(uri: &str) -> Result<Self, String> {
        let (scheme, rest) = uri.split_once("://").ok_or_else(|| {
            format!("a URI begins with mongodb://, redis:// or postgresql://, not '{uri}'")
        })?;
        let (scheme, default_port, tls) = match scheme {
            "mongodb" => (Scheme::MongoDb, 27017, false),
            "redis" => (Scheme::Redis, 6379, false),
            "rediss" => (Scheme::Redis, 6379, true),
            "postgresql" | "postgres" => (Scheme::Postgres, 5432, false),
            other => {
                return Err(format!(
                    "'{other}' is not mongodb, redis, rediss or postgresql"
                ));
            }
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, place) = match authority.rsplit_once('@') {
            Some((credentials, place)) => (Some(credentials), place),
            None => (None, authority),
        };
        if place.contains(',') {
            return Err("one host only: a load generator measures one server".into());
        }
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (
                host,
                port.parse()
                    .map_err(|_| format!("'{port}' is not a port"))?,
            ),
            _ => (place, default_port),
        };
        let (user, password) = match credentials.map(|c| c.split_once(':').unwrap_or((c, ""))) {
            Some((user, password)) => (Some(decode(user)?), decode(password)?),
            None => (None, String::new()),
        };
        let mut endpoint = Self {
            scheme,
            host: host.trim_matches(['[', ']']).into(),
            port,
            user,
            password,
            database: Some(decode(database)?).filter(|name| !name.is_empty()),
            tls,
            auth_source: None,
            auth_mechanism: None,
            ignored: Vec::new(),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            endpoint.option(name, decode(value)?);
        }
        if endpoint.host.is_empty() {
            return Err(format!("the URI '{uri}' names no host"));
        }
        Ok(endpoint)
    }

    fn option(&mut self, name: &str, value: String) {
        match name {
            "tls" | "ssl" => self.tls = value == "true",
            "sslmode" => self.tls = !matches!(value.as_str(), "disable" | "allow" | "prefer"),
            "authSource" => self.auth_source = Some(value),
            "authMechanism" => self.auth_mechanism = Some(value),
            _ => self.ignored.push(name.into()),
        }
    }

    /// The URI without its password, for results.
    pub fn shown(&self) -> String {
        let scheme = match self.scheme {
            Scheme::MongoDb => "mongodb",
            Scheme::Redis => "redis",
            Scheme::Postgres => "postgresql",
        };
        let user = self
            .user
            .as_ref()
            .map_or(String::new(), |user| format!("{user}@"));
        format!("{scheme}://{user}{}:{}", self.host, self.port)
    }
}

fn decode(text: &str) -> Result<String, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digits =
            [bytes.next(), bytes.next()].map(|d| d.and_then(|d| char::from(d).to_digit(16)));
        match digits {
            [Some(high), Some(low)] => out.push((high * 16 + low) as u8),
            _ => {
                return Err(format!(
                    "'{text}' has a % that two hexadecimal digits do not follow"
                ));
            }
        }
    }
    String::from_utf8(out).map_err(|_| format!("'{text}' is not UTF-8"))
}
