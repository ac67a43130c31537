//! The shapes that are measured: those of the models that this project trains and those that other projects
//! measure, the same from release to release.

mod additive;
mod decode;
mod dot;
mod dot_backward;
mod maps;
mod steps;

use super::case::Case;

/// Every kernel, in the shapes that matter.
///
/// ```
/// let suite = regard_kernels::measure::suite();
/// assert!(suite.iter().any(|case| case.kernel == "dot forward causal"));
/// ```
pub fn suite() -> Vec<Case> {
    let mut cases = dot::cases();
    cases.extend(dot_backward::cases());
    cases.extend(decode::cases());
    cases.extend(additive::cases());
    cases.extend(steps::cases());
    cases.extend(maps::cases());
    cases
}

/// Forward and backward at lengths from 1,024 to 65,536, to see how much memory a call takes beyond its arguments.
///
/// ```
/// let suite = regard_kernels::measure::memory_suite();
/// assert!(suite.iter().any(|case| case.shape.contains("l65536")));
/// ```
pub fn memory_suite() -> Vec<Case> {
    let mut cases = dot::memory_cases();
    cases.extend(dot_backward::memory_cases());
    cases
}

#[cfg(test)]
mod tests {
    use super::{super::Settings, *};

    #[test]
    #[cfg_attr(miri, ignore = "large")]
    fn every_case_of_a_moderate_size_runs() {
        let settings = Settings {
            rounds: 1,
            seconds: 0.0,
        };
        let mut ran = 0;
        for case in suite().iter().filter(|case| case.work < 2e8) {
            let row = case
                .run(&settings)
                .unwrap_or_else(|error| panic!("{case:?}: {error}"));
            assert!(row.value > 0.0, "{case:?}");
            ran += 1;
        }
        assert!(ran >= 8, "{ran} cases");
    }

    #[test]
    fn no_two_cases_have_the_same_name() {
        let mut names: Vec<String> = suite().iter().map(|case| format!("{case:?}")).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
