import json
import sys

from openai import OpenAI

client = OpenAI()
answer = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": sys.argv[1]}])
print(
    json.dumps(
        {
            "id": answer.id,
            "text": answer.choices[0].message.content,
            "input_tokens": answer.usage.prompt_tokens,
            "output_tokens": answer.usage.completion_tokens,
        }
    )
)
