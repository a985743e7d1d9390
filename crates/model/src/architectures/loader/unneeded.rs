//! Tensors that files carry and no computation needs, where their endings do not tell them.

use super::WeightLoader;

impl WeightLoader<'_> {
    /// Counts tensors as used that no computation needs: those whose names `is_unneeded` picks.
    pub fn ignore(&mut self, is_unneeded: impl Fn(&str) -> bool) {
        let names = self.checkpoint.tensor_names().filter(|name| is_unneeded(name));
        self.used.extend(names.map(str::to_owned));
    }

    /// Counts the tensors of layers from `first` on as used. They predict further tokens.
    pub fn ignore_layers_from(&mut self, first: usize) {
        let start = if self.is_hf() { "model.layers." } else { "blk." };
        self.ignore(|name| {
            let layer = name.strip_prefix(start).and_then(|rest| rest.split('.').next());
            layer.and_then(|layer| layer.parse().ok()).is_some_and(|layer: usize| layer >= first)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use realizar_formats::{SafeTensorsWriter, TensorType};

    #[test]
    fn layers_behind_the_last_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), r#"{"model_type": "glm4_moe"}"#).unwrap();
        let mut file = SafeTensorsWriter::new();
        for name in ["model.layers.1.a.weight", "model.layers.2.a.weight", "model.layers.10.b"] {
            file.tensor(name, TensorType::F32, &[1], &[0; 4]).unwrap();
        }
        file.write_file(dir.path().join("model.safetensors")).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let unused = |first: usize| {
            let mut loader = WeightLoader::new(&checkpoint, &[]);
            loader.ignore_layers_from(first);
            loader.finish("glm4moe", &[]).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(unused(1), Ok(()));
        let error = unused(2).unwrap_err();
        assert!(error.contains("`model.layers.1.a.weight`"), "{error}");
    }
}
