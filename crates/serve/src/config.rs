//! Where the server listens, who may ask, and how much one request can cost.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The shortest token that is accepted, in characters.
pub const TOKEN_LENGTH: usize = 16;

/// Settings of the server.
///
/// ```
/// use regard_serve::Config;
///
/// assert!(Config::default().check().is_ok());
/// let open = Config { listen: "0.0.0.0:8080".parse()?, ..Config::default() };
/// assert!(open.check().unwrap_err().to_string().contains("needs a token"));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The address. Default `127.0.0.1:0`: this machine alone, any free port. What goes to other machines is not encrypted.
    pub listen: SocketAddr,
    /// What a browser must know, at least [`TOKEN_LENGTH`] letters, digits, `-` or `_`. Needed for any address that other machines
    /// reach. Default none.
    pub token: Option<String>,
    /// How long a request waits for the model; after that it is answered 503 and the model goes on. Default 30 s.
    pub look_timeout: Duration,
    /// How many inputs may wait for the model; further ones are answered 503. At most 65,536. Default 8.
    pub queue: usize,
    /// The largest body of a request, in bytes. Default 16 MiB.
    pub max_body: usize,
    /// How many traces of the model are kept; the oldest go first, but the last look without changed heads and the last one with some stay.
    /// Those of one search count once. Default 8.
    pub kept_looks: usize,
    /// How many bytes the weights of kept traces may take; the oldest go first. The last look without changed heads and the last one with
    /// some stay, whatever they take. Default 512 MiB.
    pub kept_bytes: usize,
    /// How many connections there are at a time; further ones wait. At least 1. Default 128.
    pub connections: usize,
    /// How long a connection may stand still: beyond the time that the model has, it must send or take 16 KiB, a whole request or the
    /// beginning of an answer in it, or it is closed. A view that is not there after three quarters of both together is answered 503. Both
    /// together are at most a year. Default 30 s.
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            token: None,
            look_timeout: Duration::from_secs(30),
            queue: 8,
            max_body: 16 << 20,
            kept_looks: 8,
            kept_bytes: 512 << 20,
            connections: 128,
            patience: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// Whether the server can start safely with these settings.
    ///
    /// # Errors
    /// [`ServeError::NeedsToken`] and [`ServeError::Token`].
    pub fn check(&self) -> Result<(), ServeError> {
        match &self.token {
            None if !self.listen.ip().is_loopback() => Err(ServeError::NeedsToken {
                listen: self.listen,
            }),
            Some(token)
                if token.len() < TOKEN_LENGTH
                    || !token
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)) =>
            {
                Err(ServeError::Token { found: token.len() })
            }
            _ => Ok(()),
        }
    }
}

/// Why the server did not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Other machines could reach the address, and nothing keeps them out.
    #[error(
        "{listen} can be reached from other machines and needs a token: set one, or listen on 127.0.0.1"
    )]
    NeedsToken {
        /// The address asked for.
        listen: SocketAddr,
    },
    /// The token is too short or cannot stand in an address.
    #[error(
        "the token has {found} characters; expected at least {TOKEN_LENGTH}, letters, digits, - and _ only"
    )]
    Token {
        /// Its length in bytes.
        found: usize,
    },
    /// The address is taken or does not exist.
    #[error("cannot listen on {listen}: {source}; choose another port, or 0 for any free one")]
    Listen {
        /// The address asked for.
        listen: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system refused a thread, a timer or a socket.
    #[error("the server cannot run: {0}")]
    System(#[from] std::io::Error),
}
