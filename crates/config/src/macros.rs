//! The macros that declare configurations.

/// Declares a struct with a default and a range for each field. The doc comments are kept as data and become the comments of a
/// printed file. The names of the fields are the known keys, against which unknown keys are checked.
///
/// ```
/// use regard_config::{Check, FRACTION, SIZE, config};
///
/// config! {
///     /// Shares of units that are set to zero.
///     pub struct Dropout {
///         /// On word vectors, in [0, 1).
///         embedding: f64 = 0.1, in FRACTION;
///     }
/// }
/// config! {
///     /// A stack of layers.
///     pub struct Stack {
///         /// Units of a layer.
///         hidden: usize = 256, in SIZE;
///         /// Heads, a divisor of hidden; as many as units if left out.
///         heads: Option<usize> = None, in SIZE, example "8";
///         /// A table of its own.
///         [table] dropout: Dropout = Dropout::default();
///     }
///     check Stack::agree
/// }
/// impl Stack {
///     fn agree(&self, check: &mut Check) {
///         let heads = self.heads.unwrap_or(self.hidden);
///         let holds = self.hidden.is_multiple_of(heads.max(1));
///         check.require(holds, "heads", heads, &format!("a divisor of hidden ({})", self.hidden));
///     }
/// }
/// let mut check = Check::default();
/// check.table("stack", &Stack { heads: Some(3), ..Stack::default() });
/// let problem = check.into_first().unwrap();
/// assert_eq!(problem.to_string(), "stack.heads: found 3; expected a divisor of hidden (256)");
/// ```
///
/// Each field is written `name: type = default`. In front of it stands `[table]` if it holds another such struct, or `[choice]`
/// if it holds a [`choice!`](crate::choice!). After it may follow `in` with a [`Range`](crate::Range), and `example` with the
/// value that is shown where the key is off. The function after `check` is called once all ranges hold. The crate that
/// declares the struct needs `serde`.
#[macro_export]
macro_rules! config {
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $([$table:ident])? $field:ident: $type:ty = $default:expr
                    $(, in $range:expr)? $(, example $example:literal)?;
            )*
        }
        $(check $agree:expr)?
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $(
                $(#[doc = $doc])+
                pub $field: $type,
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::Config for $name {
            const ABOUT: &'static [&'static str] = &[$($about),*];
            const KEYS: &'static [$crate::Key] = &[
                $($crate::Key {
                    name: stringify!($field),
                    documentation: &[$($doc),+],
                    example: $crate::first(&[$($example)?]),
                    table: $crate::config!(@keys $type $(, $table)?),
                    defaults: $crate::config!(@defaults $type $(, $table)?),
                    choice: $crate::config!(@choice $type $(, $table)?),
                },)*
            ];

            fn check(&self, check: &mut $crate::Check) {
                let before = check.problems();
                $(
                    $(check.range(stringify!($field), &self.$field, $range);)?
                    $($crate::config!(@check $table, &self.$field, stringify!($field), check);)?
                )*
                $(
                    if check.problems() == before {
                        ($agree)(self, check);
                    }
                )?
                let _ = before;
            }
        }
    };
    (@check table, $value:expr, $name:expr, $check:expr) => {
        $crate::Table::check($value, $name, $check)
    };
    (@check choice, $value:expr, $name:expr, $check:expr) => {
        $crate::ChoiceKey::check($value, $name, $check)
    };
    (@keys $type:ty, table) => { Some(<$type as $crate::Table>::KEYS) };
    (@keys $type:ty $(, choice)?) => { None };
    (@defaults $type:ty, table) => { <$type as $crate::Table>::defaults };
    (@defaults $type:ty $(, choice)?) => { || None };
    (@choice $type:ty, choice) => { Some(<$type as $crate::ChoiceKey>::ALTERNATIVES) };
    (@choice $type:ty $(, table)?) => { None };
}

/// Declares a choice between configurations by the key `kind`: an enum whose variants have the names of the structs that they
/// hold. The first is chosen where `kind` is left out.
///
/// ```
/// use regard_config::{config, kinds};
///
/// config! {
///     /// Always the same.
///     pub struct Constant {
///         /// The rate.
///         rate: f64 = 0.1;
///     }
/// }
/// config! {
///     /// Down with the root of the step.
///     pub struct Root {
///         /// The rate of the first step.
///         first: f64 = 1.0;
///     }
/// }
/// kinds! {
///     /// The rate over time.
///     pub enum Schedule {
///         /// Always the same.
///         "constant" => Constant,
///         /// Lower and lower.
///         "root" => Root,
///     }
/// }
/// assert_eq!(Schedule::default().kind(), "constant");
/// assert_eq!(Schedule::Root(Root::default()).kind(), "root");
/// ```
#[macro_export]
macro_rules! kinds {
    (
        $(#[doc = $about:literal])*
        pub enum $name:ident { $($(#[doc = $doc:literal])+ $kind:literal => $variant:ident,)+ }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize)]
        #[serde(tag = "kind")]
        pub enum $name {
            $($(#[doc = $doc])+ #[serde(rename = $kind)] $variant($variant),)+
        }

        impl $name {
            /// The name in `kind`.
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$variant(_) => $kind,)+ }
            }

            /// The values that `kind` may have, with the keys of each.
            pub fn keys() -> $crate::Keys {
                $crate::Keys::Kinds(vec![$(($kind, <$variant as $crate::Config>::KEYS),)+])
            }

            /// Reads the section of this name.
            ///
            /// # Errors
            /// An unknown kind or key, or a value of the wrong type.
            pub fn read(
                source: &mut $crate::Source<'_>,
                section: &'static str,
            ) -> Result<Self, $crate::ConfigError> {
                let kind = source.kind(section, $crate::first(&[$($kind),+]))?;
                $(if kind == $kind {
                    return Ok(Self::$variant(source.section(section)?));
                })+
                unreachable!("{kind} is one of the known names")
            }

            /// Checks the section of this name.
            pub fn check(&self, section: &str, check: &mut $crate::Check) {
                match self { $(Self::$variant(config) => check.table(section, config),)+ }
            }
        }

        $crate::kinds!(@default $name $($variant)+);
    };
    (@default $name:ident $first:ident $($rest:ident)*) => {
        impl Default for $name {
            fn default() -> Self {
                Self::$first($first::default())
            }
        }
    };
}

/// Declares a choice that is the value of a key: an enum, each variant with its name and, if keys belong to it, the struct
/// that holds them. It is read from `"name"` and from `{ kind = "name", .. }`.
///
/// ```
/// use regard_config::{Choice, POSITIVE, choice, config};
///
/// config! {
///     /// Keys of "exponential".
///     pub struct Exponential {
///         /// What a step leaves, above 0.
///         share: f64 = 0.5, in POSITIVE;
///     }
/// }
/// choice! {
///     /// How a weight fades.
///     pub enum Decay {
///         /// Not at all.
///         "none" => None,
///         /// By a share at every step.
///         "exponential" => Exponential(Exponential),
///     }
/// }
/// config! {
///     /// A memory.
///     pub struct Memory {
///         /// How it fades.
///         [choice] decay: Decay = Decay::None;
///     }
/// }
/// let read = |json| serde_json::from_str::<Memory>(json).unwrap().decay;
/// assert_eq!(read("{}"), Decay::None);
/// assert_eq!(read(r#"{"decay": "exponential"}"#), Decay::Exponential(Exponential { share: 0.5 }));
/// let slow = read(r#"{"decay": {"kind": "exponential", "share": 0.9}}"#);
/// assert_eq!((slow.kind(), slow), ("exponential", Decay::Exponential(Exponential { share: 0.9 })));
/// ```
///
/// The crate that declares the choice needs `serde`.
#[macro_export]
macro_rules! choice {
    (
        $(#[doc = $about:literal])*
        pub enum $name:ident {
            $($(#[doc = $doc:literal])+ $kind:literal => $variant:ident $(($config:ty))?,)+
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum $name {
            $($(#[doc = $doc])+ $variant $(($config))?,)+
        }

        impl $crate::Choice for $name {
            const ALTERNATIVES: &'static [$crate::Alternative] = &[$($crate::Alternative {
                name: $kind,
                documentation: &[$($doc),+],
                keys: $crate::choice!(@keys $($config)?),
                defaults: $crate::choice!(@defaults $($config)?),
                expect_types: $crate::choice!(@expect_types $($config)?),
            },)+];

            fn kind(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $kind,)+ }
            }

            fn check(&self, check: &mut $crate::Check) {
                $($(if let Self::$variant(config) = self {
                    <$config as $crate::Config>::check(config, check);
                })?)+
                let _ = check;
            }

            fn values(&self) -> Option<$crate::choice::Values> {
                $($(if let Self::$variant(config) = self {
                    return $crate::choice::values::<$config>(config);
                })?)+
                None
            }

            fn of(
                kind: &str,
                values: $crate::choice::Json,
            ) -> Option<Result<Self, $crate::choice::JsonError>> {
                match kind {
                    $($kind => Some($crate::choice!(@of $variant, values $(, $config)?)),)+
                    _ => None,
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $crate::choice::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::choice::deserialize(deserializer)
            }
        }
    };
    (@keys) => { &[] };
    (@keys $config:ty) => { <$config as $crate::Config>::KEYS };
    (@defaults) => { || None };
    (@defaults $config:ty) => { <$config as $crate::Table>::defaults };
    (@expect_types) => { |_| Ok(()) };
    (@expect_types $config:ty) => { $crate::choice::expect_types::<$config> };
    (@of $variant:ident, $values:ident) => {
        $crate::choice::without_keys($values).map(|()| Self::$variant)
    };
    (@of $variant:ident, $values:ident, $config:ty) => {
        $crate::choice::from_json::<$config>($values).map(Self::$variant)
    };
}

/// The first of `examples`, if there is one.
pub const fn first(examples: &[&'static str]) -> Option<&'static str> {
    match examples {
        [] => None,
        [first, ..] => Some(first),
    }
}
