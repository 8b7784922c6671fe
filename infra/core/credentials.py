"""Names and shapes of credentials: what a stack file or a pod must not hold in plain text.

One list for both: what is refused as a value of the stack file (`infra.core.settings`) is refused in an object that was
written by hand too (`infra.core.rules.pods`).
"""

import re

#: Secret config keys that a stack may set; sources of other kinds have the same names below `stack.secrets`.
API_KEY, HUB_TOKEN, NGC_KEY = CONFIG_KEYS = ("apiKey", "huggingFaceToken", "ngcApiKey")

#: The end of a key or of an environment variable that names a credential, in any case: huggingFaceToken, NGC_API_KEY.
#: Plurals are no credentials: MAX_BATCH_TOKENS counts tokens of text.
NAME = re.compile(r"(token|api_?key|passwo?r?d|secret|(secret|access|private)_?key|credentials?)$", re.IGNORECASE)

#: Text that contains a credential, whatever it is called: tokens of Hugging Face, NGC, AWS and GitHub, keys of OpenAI
#: and those who followed its form, JSON web tokens, private keys, and URLs with a password. Of `sk-` only forms that
#: are in use: any words with hyphens would be Slovak models too (acme/sk-multilingual-base). A password that is a
#: reference to a variable, $(NAME), is none.
VALUE = re.compile(
    r"(?<![A-Za-z0-9])("
    r"hf_[A-Za-z0-9]{16,}"
    r"|nvapi-[\w-]{8,}"
    r"|A[KS]IA[0-9A-Z]{16}"
    r"|gh[opsru]_\w{20,}|github_pat_\w{20,}"
    r"|sk-([A-Za-z0-9]{16,}|(proj|svcacct|admin|ant|or|lf)-[\w-]{16,})"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\."
    r")"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|://[^/\s:@]+:(?!\$\(\w+\)@)[^/\s@]+@"
)
