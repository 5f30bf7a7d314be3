{{- define "chopperd.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "chopperd.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "chopperd.labels" -}}
{{ include "chopperd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "chopperd.image" -}}
{{- with .Values.image }}{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{- /*
A value as TOML. Helm reads every number as a float, and its toToml writes 512 as 512.0, which is no
whole number: those are written without a point here. Strings are the same in JSON.
*/ -}}
{{- define "chopperd.toml" -}}
{{- if kindIs "map" . -}}
{ {{- range $index, $key := keys . | sortAlpha }}{{ if $index }},{{ end }} {{ $key | toJson }} = {{ include "chopperd.toml" (get $ $key) }}{{ end }} }
{{- else if kindIs "slice" . -}}
[ {{- range $index, $each := . }}{{ if $index }},{{ end }} {{ include "chopperd.toml" $each }}{{ end }} ]
{{- else if and (kindIs "float64" .) (eq . (floor .)) -}}
{{ printf "%.0f" . }}
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end }}

{{- define "chopperd.config" -}}
[paths]
state = "/var/lib/chopperd"
runtime = "/run/chopperd"

[health]
fail_on_lost_driver = true
{{- $metrics := dict "listen" (printf "%s:%d" .Values.metrics.address (int .Values.metrics.port)) }}
{{- $sections := mergeOverwrite (deepCopy .Values.config) (dict "metrics" $metrics) }}
{{- range $section, $keys := $sections }}

[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ include "chopperd.toml" $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* Nodes with a GPU by any label that says so; where nothing labels nodes, all workers. */}}
{{- define "chopperd.gpuNodes" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range list "nvidia.com/gpu.present" "feature.node.kubernetes.io/amd-gpu" }}
      - matchExpressions: [{key: {{ . }}, operator: In, values: ["true"]}]
      {{- end }}
      {{- range list "10de" "0300_10de" "0302_10de" "0300_1002" "0302_1002" "0380_1002" "1200_1002" }}
      - matchExpressions: [{key: feature.node.kubernetes.io/pci-{{ . }}.present, operator: In, values: ["true"]}]
      {{- end }}
      {{- range list "nvidia.com/gpu.product" "amd.com/gpu.product-name" "cloud.google.com/gke-accelerator" "k8s.amazonaws.com/accelerator" }}
      - matchExpressions: [{key: {{ . }}, operator: Exists}]
      {{- end }}
      - matchExpressions:
          {{- range list "feature.node.kubernetes.io/kernel-version.full" "cloud.google.com/gke-nodepool" "node-role.kubernetes.io/control-plane" "node-role.kubernetes.io/master" }}
          - {key: {{ . }}, operator: DoesNotExist}
          {{- end }}
{{- end }}
