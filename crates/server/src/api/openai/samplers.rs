//! llama-server's `samplers`: which steps of sampling are on, and their order. The temperature comes
//! before or after the filters; otherwise the order of this server is fixed, so a list is followed where
//! it gives the same as this order, and refused otherwise.

use crate::error::ApiError;
use realizar_runtime::sampling::SamplingParams;
use serde::Deserialize;

/// The steps, as a list of names or as a text with a letter for each.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a list of names, or a text of letters")]
pub(crate) enum Samplers {
    Names(Vec<String>),
    Letters(String),
}

/// A step, in the order of this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Penalties,
    Dry,
    Temperature,
    TopNSigma,
    TopK,
    TypicalP,
    TopP,
    MinP,
    Xtc,
}

/// The steps in their order, with their letters and names.
const STEPS: [(Step, char, &str); 9] = [
    (Step::Penalties, 'e', "penalties"),
    (Step::Dry, 'd', "dry"),
    (Step::Temperature, 't', "temperature"),
    (Step::TopNSigma, 's', "top_n_sigma"),
    (Step::TopK, 'k', "top_k"),
    (Step::TypicalP, 'y', "typ_p"),
    (Step::TopP, 'p', "top_p"),
    (Step::MinP, 'm', "min_p"),
    (Step::Xtc, 'x', "xtc"),
];

impl Step {
    fn by_name(name: &str) -> Option<Self> {
        let name = match name {
            "typical_p" => "typ_p",
            name => name,
        };
        STEPS.iter().find(|(_, _, known)| *known == name).map(|(step, ..)| *step)
    }

    fn by_letter(letter: char) -> Option<Self> {
        STEPS.iter().find(|(_, known, _)| *known == letter).map(|(step, ..)| *step)
    }

    fn name(self) -> &'static str {
        STEPS[self as usize].2
    }

    /// Whether it changes anything with these parameters.
    fn is_on(self, params: &SamplingParams) -> bool {
        match self {
            Self::Penalties => {
                params.repetition_penalty != 1.0
                    || params.presence_penalty != 0.0
                    || params.frequency_penalty != 0.0
            }
            Self::Dry => params.dry_multiplier > 0.0,
            Self::Temperature => params.temperature != 1.0,
            Self::TopNSigma => params.top_n_sigma > 0.0,
            Self::TopK => params.top_k > 0,
            Self::TypicalP => params.typical_p < 1.0,
            Self::TopP => params.top_p < 1.0,
            Self::MinP => params.min_p > 0.0,
            Self::Xtc => params.xtc_probability > 0.0,
        }
    }

    fn turn_off(self, params: &mut SamplingParams) {
        match self {
            Self::Penalties => {
                params.repetition_penalty = 1.0;
                (params.presence_penalty, params.frequency_penalty) = (0.0, 0.0);
            }
            Self::Dry => params.dry_multiplier = 0.0,
            Self::Temperature => params.temperature = 1.0,
            Self::TopNSigma => params.top_n_sigma = 0.0,
            Self::TopK => params.top_k = 0,
            Self::TypicalP => params.typical_p = 1.0,
            Self::TopP => params.top_p = 1.0,
            Self::MinP => params.min_p = 0.0,
            Self::Xtc => params.xtc_probability = 0.0,
        }
    }

    /// Whether both orders of two steps leave the same tokens. A temperature keeps the order of
    /// the logits and scales their spread with them; at zero only the best token counts, which
    /// these never drop.
    fn commutes(self, other: Self, temperature: f32) -> bool {
        match (self.min(other), self.max(other)) {
            (Self::Temperature, Self::TopNSigma | Self::TopK) => true,
            (Self::Temperature, Self::TopP | Self::MinP) => temperature == 0.0,
            _ => false,
        }
    }
}

/// The names of the steps that are applied with these parameters, in their order: those of a request
/// that lists some, else all.
pub(crate) fn names(
    given: Option<&Samplers>,
    params: &SamplingParams,
) -> Result<Vec<&'static str>, ApiError> {
    let all = || Ok(STEPS.map(|(step, ..)| step).to_vec());
    let mut steps = given.map_or_else(all, Samplers::steps)?;
    steps
        .sort_unstable_by_key(|&step| (step == Step::Temperature && params.temperature_last, step));
    Ok(steps.into_iter().map(Step::name).collect())
}

impl Samplers {
    fn steps(&self) -> Result<Vec<Step>, ApiError> {
        let unknown = |name: &str| {
            let known = STEPS.map(|(_, letter, name)| format!("{name} ({letter})")).join(", ");
            let message = format!("unknown sampler `{name}`; this server has {known}");
            ApiError::invalid("samplers", message)
        };
        match self {
            Self::Names(names) => {
                let step = |name: &String| Step::by_name(name).ok_or_else(|| unknown(name));
                names.iter().map(step).collect()
            }
            Self::Letters(letters) => {
                let step =
                    |c: char| Step::by_letter(c).ok_or_else(|| unknown(c.encode_utf8(&mut [0; 4])));
                letters.chars().map(step).collect()
            }
        }
    }

    /// Turns off what is not in the list, and puts the temperature where the list has it.
    ///
    /// Fails on a step that does not exist or is there twice, and on an order that would choose
    /// other tokens than this server's.
    pub(crate) fn apply(&self, params: &mut SamplingParams) -> Result<(), ApiError> {
        let steps = self.steps()?;
        if params.mirostat != 0 {
            let message = "`samplers` and `mirostat` are mutually exclusive";
            return Err(ApiError::invalid("samplers", message));
        }
        for (i, step) in steps.iter().enumerate() {
            if steps[..i].contains(step) {
                let message =
                    format!("`{}` is listed twice; a sampler is applied once", step.name());
                return Err(ApiError::invalid("samplers", message));
            }
        }
        let others = STEPS.iter().map(|(step, ..)| *step).filter(|step| !steps.contains(step));
        others.for_each(|step| step.turn_off(params));
        let on: Vec<Step> = steps.into_iter().filter(|step| step.is_on(params)).collect();
        params.temperature_last = is_temperature_last(&on, params.temperature)?;
        for (i, &later) in on.iter().enumerate() {
            // What comes before the temperature here may come before it.
            let is_placed = later == Step::Temperature && params.temperature_last;
            let conflict = |earlier: &&Step| {
                **earlier > later && !is_placed && !earlier.commutes(later, params.temperature)
            };
            if let Some(earlier) = on[..i].iter().find(conflict) {
                let order = STEPS.map(|(_, _, name)| name).join(", ");
                let message = format!(
                    "this server applies `{}` before `{}`; its order is {order}",
                    later.name(),
                    earlier.name(),
                );
                return Err(ApiError::invalid("samplers", message));
            }
        }
        Ok(())
    }
}

/// Whether the temperature comes after the filters for which its place matters. Zero has no place: it
/// takes the most likely token.
fn is_temperature_last(on: &[Step], temperature: f32) -> Result<bool, ApiError> {
    let at = on.iter().position(|step| *step == Step::Temperature);
    let Some(at) = at.filter(|_| temperature != 0.0) else { return Ok(false) };
    let matters =
        |step: &&Step| **step > Step::Temperature && !step.commutes(Step::Temperature, temperature);
    let earlier = on[..at].iter().find(matters);
    let later = on[at..].iter().find(matters);
    if let (Some(earlier), Some(later)) = (earlier, later) {
        let message = format!(
            "this server applies `temperature` before all filters or after them, not between \
             `{}` and `{}`",
            earlier.name(),
            later.name(),
        );
        return Err(ApiError::invalid("samplers", message));
    }
    Ok(earlier.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> SamplingParams {
        SamplingParams {
            temperature: 0.7,
            top_k: 20,
            top_p: 0.9,
            min_p: 0.1,
            repetition_penalty: 1.1,
            ..SamplingParams::default()
        }
    }

    fn apply(json: &str, mut params: SamplingParams) -> Result<SamplingParams, String> {
        let samplers: Samplers = serde_json::from_str(json).expect(json);
        samplers.apply(&mut params).map_err(|error| error.to_string())?;
        Ok(params)
    }

    #[test]
    fn steps_are_in_their_order() {
        assert!(STEPS.iter().enumerate().all(|(i, (step, ..))| *step as usize == i));
    }

    #[test]
    fn what_is_not_listed_is_off() {
        let check = |json: &str, want: SamplingParams| {
            assert_eq!(apply(json, params()), Ok(want), "{json}");
        };
        let off = SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            ..params()
        };
        check("[]", off.clone());
        check(r#"["top_k"]"#, SamplingParams { top_k: 20, ..off.clone() });
        check(r#""k""#, SamplingParams { top_k: 20, ..off.clone() });
        let some = SamplingParams { temperature: 0.7, top_k: 20, min_p: 0.1, ..off.clone() };
        check(r#"["temperature", "top_k", "min_p"]"#, some.clone());
        // The best tokens are the same ones at every temperature.
        check(r#"["top_k", "temperature", "min_p"]"#, some);
        check(
            r#"["penalties", "dry", "temperature", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc"]"#,
            params(),
        );
        check(r#""edtskypmx""#, params());
    }

    #[test]
    fn another_order_is_followed_only_where_it_gives_the_same() {
        let llama = r#"["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]"#;
        let check =
            |params: SamplingParams, want: Result<(), &str>| match (apply(llama, params), want) {
                (Ok(_), Ok(())) => {}
                (Err(got), Err(want)) => assert!(got.contains(want), "{got}"),
                (got, want) => panic!("{got:?} instead of {want:?}"),
            };
        check(params(), Ok(()));
        check(SamplingParams { temperature: 1.0, ..params() }, Ok(()));
        check(SamplingParams { temperature: 0.0, ..params() }, Ok(()));
        check(
            SamplingParams { temperature: 0.0, typical_p: 0.5, ..params() },
            Err("before `typ_p`"),
        );
        check(SamplingParams { top_p: 1.0, min_p: 0.0, ..params() }, Ok(()));
        check(SamplingParams { mirostat: 2, ..params() }, Err("`mirostat`"));
    }

    #[test]
    fn the_temperature_comes_before_or_after_all_filters() {
        let order = |json: &str| apply(json, params()).map(|params| params.temperature_last);
        assert_eq!(order(r#"["temperature", "top_p", "min_p"]"#), Ok(false));
        assert_eq!(order(r#"["top_k", "temperature", "top_p"]"#), Ok(false));
        assert_eq!(order(r#"["top_k", "top_p", "min_p", "temperature"]"#), Ok(true));
        assert_eq!(order(r#"["top_k", "temperature"]"#), Ok(false));
        // Typical-p is off.
        assert_eq!(order(r#"["top_p", "temperature", "typ_p"]"#), Ok(true));
        let between = order(r#"["top_p", "temperature", "min_p"]"#).unwrap_err();
        assert!(between.contains("not between `top_p` and `min_p`"), "{between}");
        let late = order(r#"["temperature", "penalties"]"#).unwrap_err();
        assert!(late.contains("`penalties` before `temperature`"), "{late}");

        let last = SamplingParams { temperature_last: true, ..params() };
        let listed = Samplers::Letters("tkp".to_owned());
        assert_eq!(names(Some(&listed), &last).ok(), Some(vec!["top_k", "top_p", "temperature"]));
        assert_eq!(names(None, &last).unwrap().last(), Some(&"temperature"));
        assert_eq!(names(None, &params()).unwrap()[2], "temperature");
    }

    #[test]
    fn what_is_no_step_is_refused() {
        let check = |json: &str, want: &str| {
            let error = apply(json, params()).unwrap_err();
            assert!(error.contains(want), "{json}: {error}");
        };
        check(r#"["infill"]"#, "`infill`");
        check(r#""kz""#, "`z`");
        check(r#"["top_k", "top_k"]"#, "`top_k` is listed twice");
        check(r#"["min_p", "top_p"]"#, "`top_p` before `min_p`");
    }
}
