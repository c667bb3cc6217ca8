"""A script for the fault server that answers GSM8K-like questions from their file, right or wrong as told."""

from fault_server import Script

from workloads.sources.gsm8k import load_questions


def solving(path, *, wrong_every=None, runs_on=False):
    """A script that knows the file: each `wrong_every`-th question is answered wrongly; `runs_on` adds another one."""
    questions = load_questions(path)

    def answer(body):
        prompt = body.get("prompt") or body["messages"][0]["content"]
        asked = prompt.rsplit("Question: ", 1)[1].removesuffix("\nAnswer:")
        question = next((q for q in questions if q.question == asked), None)
        if question is None:  # the readiness prompt, which is cut short
            return " ready"
        text = " " + question.answer
        if wrong_every and question.index % wrong_every == 0:
            text += "9"
        return text + ("\n\nQuestion: what is 1 + 1?\nAnswer: 2\n#### 2" if runs_on else "")

    return Script(text_of_body=answer, usage="final")
