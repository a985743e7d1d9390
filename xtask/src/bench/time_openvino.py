"""Times OpenVINO GenAI on a GGUF file: one prompt, or the tokens generated after it.

Prints {"tokens_per_second": x}. A run that is not counted goes first, on other tokens: prompts that
were seen before are not computed again.

    python time_openvino.py model.gguf --prompt 512 -t 2
    python time_openvino.py model.gguf --prompt 128 --generate 32 --batch 8 -t 2
    python time_openvino.py --version
"""

import argparse
import json


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=0, help="0 times the prompt")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--backend", default="PA", help="attention: PA or SDPA")
    parser.add_argument("--no-warmup", action="store_true")
    args = parser.parse_args()

    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    if args.version:
        print(f"OpenVINO GenAI {genai.__version__}")
        return

    pipeline = genai.LLMPipeline(
        args.model,
        "CPU",
        INFERENCE_NUM_THREADS=args.threads,
        ATTENTION_BACKEND=args.backend,
    )
    # The prompt's last row gives the first token, so that one more makes as many steps as asked.
    config = genai.GenerationConfig(
        max_new_tokens=args.generate + 1,
        ignore_eos=True,
        do_sample=False,
        apply_chat_template=False,
    )

    def run(seed):
        """Seconds of every step, the prompt's first."""
        rng = np.random.default_rng(seed)
        ids = rng.integers(1000, 30000, (args.batch, args.prompt), dtype=np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        raw = pipeline.generate(inputs, config).perf_metrics.raw_metrics
        return [float(us) * 1e-6 for us in raw.token_infer_durations]

    if not args.no_warmup:
        run(0)
    steps = run(1)
    if args.generate == 0:
        speed = args.batch * args.prompt / steps[0]
    else:
        speed = args.batch * len(steps[1:]) / sum(steps[1:])
    print(json.dumps({"tokens_per_second": speed}))


if __name__ == "__main__":
    main()
