package control

import "encoding/json"

// Names of files are bytes, but strings of JSON are text, in which each byte
// that is not UTF-8 becomes U+FFFD: another name. The messages about files
// therefore carry paths, names and targets as base64.

// plainRequest and plainEntry are their types without the methods below.
type (
	plainRequest FileRequest
	plainEntry   Entry
)

type fileRequestJSON struct {
	*plainRequest

	Path   []byte `json:"path"`
	Target []byte `json:"target,omitempty"`
}

type entryJSON struct {
	*plainEntry

	Name   []byte `json:"name"`
	Target []byte `json:"target,omitempty"`
}

// MarshalJSON keeps bytes that are not UTF-8.
func (r FileRequest) MarshalJSON() ([]byte, error) {
	return json.Marshal(fileRequestJSON{(*plainRequest)(&r), []byte(r.Path), []byte(r.Target)})
}

// UnmarshalJSON reads what [FileRequest.MarshalJSON] wrote.
func (r *FileRequest) UnmarshalJSON(b []byte) error {
	j := fileRequestJSON{plainRequest: (*plainRequest)(r)}
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	r.Path, r.Target = string(j.Path), string(j.Target)
	return nil
}

// MarshalJSON keeps bytes that are not UTF-8.
func (e Entry) MarshalJSON() ([]byte, error) {
	return json.Marshal(entryJSON{(*plainEntry)(&e), []byte(e.Name), []byte(e.Target)})
}

// UnmarshalJSON reads what [Entry.MarshalJSON] wrote.
func (e *Entry) UnmarshalJSON(b []byte) error {
	j := entryJSON{plainEntry: (*plainEntry)(e)}
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	e.Name, e.Target = string(j.Name), string(j.Target)
	return nil
}
